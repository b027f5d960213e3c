"""Runtimes with collectors and address spaces of their own."""

import inputs
from row import MIB
from rows_data import tool

SOURCE = "{sources}/sources"
PARI = (
    "default(parisizemax, 1000000000)\nv = vector(400000, i, i^3 + 1); print(vecsum(v) % (10^9+7));"
    " M = matrix(90, 90, i, j, (i * 7919 + j * 104729) % 1009); print(matdet(M) % (10^15 + 37));"
    " print(#factor(x^720 - 1)[,1]); print(eulerphi(100!) % (10^9 + 7))"
)
GUILE = (
    "(let loop ((i 0) (t (make-hash-table))) (if (< i 600000) (begin (hash-set! t (string-append"
    ' "key " (number->string (modulo (* i 7919) 300007))) (list i (* i i) (iota 5))) (loop (+ i 1)'
    " t)) (begin (display (hash-fold (lambda (k v s) (+ s (string-length k) (cadr v))) 0 t))"
    " (newline))))"
)
LUA = (
    "local t = {} for i = 1, 1500000 do t[i * 7919 % 700001] = {i, 'v' .. i} end local n, s = 0, 0"
    " for k, v in pairs(t) do n = n + 1; s = s + k * v[1] + #v[2] end print(n, s)"
)
TCL = (
    "for {set i 0} {$i < 300000} {incr i} { dict set d [expr {$i * 7919 % 200003}] [list $i v$i] };"
    " set s 0; dict for {k v} $d { incr s [expr {$k * [lindex $v 0]}] };"
    " puts [dict size $d]; puts $s"
)
GAP = (
    "G := SymmetricGroup(9);; Display(Length(ConjugacyClasses(G)));"
    " l := List([1..400000], i -> [i, i^3, String(i)]);; Display(Sum(l, x -> x[2])); QUIT;"
)

RUNTIMES = [
    # A limit of address space smaller than what Highwater reserves.
    tool("ulimit-v", "ulimit -v 600000; python3 -c 'print(sum(bytearray(1 << 25)))'", 16,
         "python3"),
    tool("r", f"Rscript --vanilla {SOURCE}/table.R", 120, "Rscript:r-base-core"),
    tool("octave", f"octave-cli -W -q {SOURCE}/matrices.m", 60, "octave-cli:octave", limit=100),
    tool("sbcl", f"sbcl --script {SOURCE}/tables.lisp", 64, "sbcl"),
    tool("ocaml", f"ocaml {SOURCE}/tables.ml", 48, "ocaml:ocaml-nox"),
    tool(
        "ghc",
        f"cp {SOURCE}/Tables.hs . && ghc -v0 -O1 Tables.hs && ./Tables",
        48,
        "ghc",
        limit=100,
    ),
    tool(
        "mono",
        f"mcs -out:Tables.exe {SOURCE}/Tables.cs && mono Tables.exe",
        32,
        "mcs:mono-mcs mono:mono-runtime",
    ),
    tool("swi-prolog", f"swipl -q {SOURCE}/tables.pl", 60, "swipl:swi-prolog-nox"),
    tool("pari-gp", f"echo '{PARI}' | gp -q -s 400M", 48, "gp:pari-gp"),
    tool("guile", f"guile --no-auto-compile -c '{GUILE}'", 64, "guile:guile-3.0"),
    tool("lua", f'lua5.4 -e "{LUA}"', 100, "lua5.4"),
    tool("tcl", f"echo '{TCL}' | tclsh", 48, "tclsh:tcl"),
    tool("gap", f"echo '{GAP}' | gap -q -b", 64, "gap:gap-core"),
    tool(
        "vim",
        "cp {inputs}/words.txt a.txt &&"
        " vim -es -u NONE -N -n -c '%s/w\\([0-9a-f]\\)/\\1w/g' -c '%!tac'"
        " -c wq a.txt; sha256sum < a.txt",
        32,
        "vim",
        inputs.words,
    ),
]
