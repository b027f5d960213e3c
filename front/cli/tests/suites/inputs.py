"""Makes the inputs of rows: random, but equal on every machine. Each input is made once."""

import random
from pathlib import Path


def once(path, make):
    """Calls `make` to write a file if it does not exist; an interrupted write leaves no file."""
    path = Path(path)
    if not path.exists():
        part = path.with_name(path.name + ".part")
        with open(part, "w", encoding="ascii") as out:
            make(out, random.Random(path.name))
        part.rename(path)
    return path


def words(inputs):
    """25 MB of lines of words, some frequent and many rare."""

    def make(out, source):
        for _ in range(400_000):
            chosen = [f"w{source.randrange(1 << source.randrange(5, 20)):x}" for _ in range(10)]
            out.write(" ".join(chosen) + "\n")

    once(inputs / "words.txt", make)


def table(inputs):
    """A CSV file of 600,000 lines."""

    def make(out, source):
        out.write("id,key,price,name\n")
        for number in range(600_000):
            price = source.randrange(10**6) / 100
            out.write(f"{number},{source.randrange(50_000)},{price},name {source.random():.12f}\n")

    once(inputs / "table.csv", make)


def objects(inputs):
    """JSON: an array of 200,000 objects."""

    def make(out, source):
        out.write("[\n")
        for number in range(200_000):
            tags = ",".join(f'"t{source.randrange(999)}"' for _ in range(5))
            end = "\n" if number == 199_999 else ",\n"
            value = source.randrange(10**9)
            out.write(f'{{"id":{number},"value":{value},"tags":[{tags}],"name":"n{value:x}"}}{end}')
        out.write("]\n")

    once(inputs / "objects.json", make)


def document(inputs):
    """XML of 300,000 elements, and a sheet that sorts them."""

    def make(out, source):
        out.write("<root>\n")
        for number in range(150_000):
            value = source.randrange(10**9)
            out.write(f'<item id="{number}" key="{value}"><name>name {value:x}</name></item>\n')
        out.write("</root>\n")

    def sheet(out, _source):
        out.write(
            '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">'
            '<xsl:output method="text"/><xsl:template match="/root"><xsl:for-each select="item">'
            '<xsl:sort select="@key"/><xsl:value-of select="name"/><xsl:text>&#10;</xsl:text>'
            "</xsl:for-each></xsl:template></xsl:stylesheet>\n"
        )

    once(inputs / "document.xml", make)
    once(inputs / "sheet.xsl", sheet)


def genome(inputs):
    """A reference of 4 million bases, 100,000 reads of it, intervals on it."""
    bases = {}

    def reference(out, source):
        for chromosome in range(4):
            text = "".join(source.choices("ACGT", k=1_000_000))
            bases[chromosome] = text
            out.write(f">chr{chromosome}\n")
            out.writelines(text[at : at + 80] + "\n" for at in range(0, len(text), 80))

    def reads(out, source):
        for number in range(100_000):
            text, at = bases[source.randrange(4)], source.randrange(999_900)
            read = list(text[at : at + 100])
            read[source.randrange(100)] = "A"
            out.write(f"@r{number}\n{''.join(read)}\n+\n{'I' * 100}\n")

    def intervals(out, source):
        for _ in range(400_000):
            at = source.randrange(10**8)
            out.write(f"chr{source.randrange(4)}\t{at}\t{at + source.randrange(1, 5000)}\n")

    if not (inputs / "reads.fq").exists():
        (inputs / "reference.fa").unlink(missing_ok=True)
    once(inputs / "reference.fa", reference)
    once(inputs / "reads.fq", reads)
    once(inputs / "intervals.bed", intervals)


def markdown(inputs):
    """A book of 1 MB."""

    def make(out, source):
        for chapter in range(60):
            out.write(f"# Chapter {chapter}\n\n")
            for _ in range(40):
                line = " ".join(f"word{source.randrange(999)}" for _ in range(50))
                out.write(f"Some *{line[:40]}* and **bold** with `code`. {line}\n\n")
            out.write("| a | b |\n|---|---|\n")
            out.writelines(f"| {source.random()} | {row} |\n" for row in range(100))
            out.write("\n")

    once(inputs / "book.md", make)


def drawing(inputs):
    """PostScript of 20 pages with 5,000 strokes and letters each."""

    def make(out, source):
        out.write("%!PS\n/Helvetica findfont 12 scalefont setfont\n")
        for _ in range(20):
            for number in range(5000):
                x, y = source.randrange(600), source.randrange(800)
                color = " ".join(f"{source.random():.3f}" for _ in range(3))
                out.write(f"{color} setrgbcolor newpath {x} {y} moveto ")
                end = f"{source.randrange(600)} {source.randrange(800)}"
                draw = f"({number}) show" if number % 3 else f"{end} lineto stroke"
                out.write(f"{draw}\n")
            out.write("showpage\n")

    once(inputs / "drawing.ps", make)


def graph(inputs):
    """A graph of 1,500 nodes and 2,500 edges for graphviz."""

    def make(out, source):
        out.write("digraph g {\n")
        for number in range(1500):
            out.write(f"n{number} -> n{source.randrange(max(1, number))};\n")
        for _ in range(300):
            start = source.randrange(1400)
            out.write(f"n{start + source.randrange(1, 99)} -> n{start};\n")
        out.write("}\n")

    once(inputs / "graph.dot", make)


def programme(inputs):
    """A transport problem of 200 plants and 400 markets, in CPLEX LP."""

    def make(out, source):
        plants, markets = range(150), range(300)
        cost = [[source.randrange(5, 99) for _ in markets] for _ in plants]
        terms = (f"{cost[p][m]} x{p}_{m}" for p in plants for m in markets)
        out.write("minimize\n c: " + "\n + ".join(terms) + "\nsubject to\n")
        for plant in plants:
            sent = "\n + ".join(f"x{plant}_{m}" for m in markets)
            out.write(f" p{plant}: {sent} <= {2 * len(markets)}\n")
        for market in markets:
            had = "\n + ".join(f"x{p}_{market}" for p in plants)
            out.write(f" m{market}: {had} >= {source.randrange(10, 200)}\n")
        out.write("end\n")

    once(inputs / "transport.lp", make)


def formula(inputs):
    """SMT: arrays, bit vectors and integers, solvable."""

    def make(out, source):
        count = 250
        for number in range(count):
            out.write(f"(declare-const x{number} Int)(declare-const b{number} (_ BitVec 16))\n")
            out.write(f"(assert (and (<= 0 x{number}) (< x{number} 1000)))\n")
        for number in range(count - 1):
            factor = source.randrange(2, 5)
            out.write(f"(assert (< x{number} (+ (* {factor} x{number + 1}) 3)))\n")
            product = f"(bvmul b{number} #x00{factor}7)"
            out.write(f"(assert (= b{number + 1} (bvadd {product} #x0101)))\n")
        out.write("(assert (> (+ " + " ".join(f"x{n}" for n in range(count)) + ") 120000))\n")
        out.write("(assert (= ((_ extract 3 0) b200) #x7))\n(check-sat)\n")

    once(inputs / "formula.smt2", make)
