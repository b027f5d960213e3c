"""Programs that often run out of memory: data, documents, pictures, solvers."""

import inputs
from row import MIB, Row

# Only a digest is kept of printed output and of files.
DIGEST = "| sha256sum"


def tool(name, command, budget, apt, prepare=None, **more):
    """A row for a program of a Debian package; `apt` is "COMMAND" or "COMMAND:PACKAGE"."""
    needs, packages = [], []
    for pair in apt.split():
        need, _, package = pair.partition(":")
        needs.append(need)
        packages.append(package or need)
    return Row(
        name=name,
        command=command,
        budget=budget * MIB,
        needs=tuple(needs),
        apt=tuple(packages),
        prepare=prepare,
        **more,
    )


def library(name, budget, *pip):
    command = f"{{python}} {{sources}}/sources/science.py {name}"
    return Row(name=f"python-{name}", command=command, budget=budget * MIB, pip=(name, *pip))


SHEETS = "xsltproc --huge {inputs}/sheet.xsl {inputs}/document.xml"
QUERY = (
    "create table t(id int, key int, price real, name text);\n.mode csv\n"
    ".import --skip 1 {inputs}/table.csv t\ncreate index k on t(key);\n"
    "select key, count(*), sum(price), max(name) from t group by key order by 3 desc limit 5;\n"
    "select count(*), sum(a.id) from t a join t b using (key) where b.id % 50 = 0;"
)
COUNT = "{ for (i = 1; i < NF; i += 3) seen[$i $(i + 1)]++ } END { for (w in seen) n += seen[w]; "
COUNT += "print length(seen), n }"
JQ = "group_by(.value % 1000) | map({k: (.[0].value % 1000), n: length, s: (map(.value) | add)})"
PLOT = (
    'set terminal svg; set output "plot.svg"; set samples 100000; '
    'plot for [i=1:6] [0:99999] "+" using (sin(i*$1)):(cos($1*7)) with dots'
)

DATA = [
    tool("sqlite3-memory", f"echo '{QUERY}' | sqlite3 :memory:", 32, "sqlite3"),
    tool("jq", f"jq -c '{JQ}' {{inputs}}/objects.json {DIGEST}", 120, "jq", inputs.objects),
    tool("gawk", f"head -n 100000 {{inputs}}/words.txt | gawk '{COUNT}'", 60, "gawk", inputs.words),
    tool("mawk", f"mawk '{COUNT}' {{inputs}}/words.txt", 64, "mawk", inputs.words),
    tool("xsltproc", f"{SHEETS} {DIGEST}", 64, "xsltproc", inputs.document),
    tool(
        "diff",
        "head -n 60000 {inputs}/words.txt | tac > other; sort -S 64M {inputs}/words.txt > sorted;"
        " diff -n sorted other | sha256sum",
        32,
        "diff:diffutils",
        inputs.words,
    ),
    tool(
        "xz-9",
        "head -c 3M {inputs}/table.csv | xz -9 -T1 > a.xz && xz -dc a.xz | sha256sum",
        24,
        "xz:xz-utils",
        inputs.table,
        files=("a.xz",),
    ),
    tool(
        "zstd-ultra",
        "head -c 2M {inputs}/words.txt | zstd -q --ultra -20 --long=27 -T1 > a.zst"
        " && zstd -dc --long=27 a.zst | sha256sum",
        48,
        "zstd",
        inputs.words,
        files=("a.zst",),
        limit=100,
    ),
    tool(
        "7z",
        "head -c 4M {inputs}/table.csv | 7zz a -si -bd -mmt2 -md=16m -mtm=off a.7z > log"
        " && 7zz x -so a.7z | sha256sum",
        48,
        "7zz:7zip",
        inputs.table,
        limit=100,
    ),
    tool(
        "samtools-sort",
        "bwa index -p ref {inputs}/reference.fa 2>log && bwa mem -t 2 ref {inputs}/reads.fq 2>log"
        " | samtools sort -@ 1 -m 100M --no-PG -o a.bam - && samtools view a.bam | sha256sum",
        24,
        "bwa samtools",
        inputs.genome,
        limit=100,
    ),
    tool(
        "bedtools",
        "sort -S 100M -k1,1 -k2,2n {inputs}/intervals.bed > sorted; bedtools merge -i sorted"
        " | sha256sum; bedtools intersect -a {inputs}/intervals.bed -b sorted -c | sha256sum",
        40,
        "bedtools",
        inputs.genome,
    ),
    tool("pandoc", f"pandoc -t html5 {{inputs}}/book.md {DIGEST}", 140, "pandoc", inputs.markdown),
    tool(
        "ghostscript",
        "gs -q -dBATCH -dNOPAUSE -dSAFER -sDEVICE=ppmraw -r300 -dLastPage=3 -dBufferSpace=80000000"
        " -sOutputFile=- {inputs}/drawing.ps | sha256sum",
        24,
        "gs:ghostscript",
        inputs.drawing,
    ),
    tool(
        "qpdf-poppler",
        "gs -q -dBATCH -dNOPAUSE -dSAFER -sDEVICE=pdfwrite -sOutputFile=a.pdf {inputs}/drawing.ps"
        " && qpdf --deterministic-id --object-streams=generate --linearize a.pdf b.pdf"
        " && pdftoppm -r 500 -l 1 b.pdf | sha256sum && pdftotext b.pdf - | sha256sum",
        16,
        "gs:ghostscript qpdf pdftoppm:poppler-utils",
        inputs.drawing,
    ),
    tool(
        "graphviz",
        "dot -Tplain -Gnslimit=1 {inputs}/graph.dot | sha256sum; sfdp -Tplain {inputs}/graph.dot"
        " | sha256sum",
        8,
        "dot:graphviz",
        inputs.graph,
        limit=100,
    ),
    tool(
        "glpsol",
        "glpsol --lp {inputs}/transport.lp -o solution > log; grep Objective solution",
        16,
        "glpsol:glpk-utils",
        inputs.programme,
        limit=100,
    ),
    tool("z3", "z3 -T:50 {inputs}/formula.smt2", 16, "z3", inputs.formula, limit=100),
    tool("gnuplot", f"gnuplot -e '{PLOT}' && sha256sum plot.svg", 16, "gnuplot:gnuplot-nox"),
    library("scipy", 90),
    library("networkx", 64),
    library("lightgbm", 80, "numpy", "scipy"),
    library("h5py", 90, "numpy"),
    library("sympy", 24),
    library("lxml", 160),
    library("pillow", 60),
]
