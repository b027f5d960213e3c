"""Libraries on NumPy: `science.py {scipy|networkx|lightgbm|h5py|sympy|lxml|pillow}`."""

import hashlib
import io
import sys


def digest(data):
    return hashlib.sha256(data).hexdigest()


def scipy():
    import numpy as np
    from scipy import fft, sparse, spatial
    from scipy.sparse import csgraph

    source = np.random.default_rng(1)
    places = source.integers(0, 200_000, (2, 3_000_000))
    matrix = sparse.coo_matrix((np.ones(3_000_000), places), (200_000, 200_000)).tocsr()
    print((matrix @ matrix[:, :2000]).sum(), csgraph.connected_components(matrix)[0])
    print(spatial.cKDTree(source.random((300_000, 3))).query(source.random((1000, 3)))[1].sum())
    print(abs(fft.fft(source.integers(0, 9, 1 << 21).astype(float))).max())


def networkx():
    import networkx as nx

    graph = nx.gnm_random_graph(60_000, 200_000, seed=1)
    print(nx.number_connected_components(graph), sum(nx.core_number(graph).values()))
    lengths = nx.single_source_shortest_path_length(graph, 0)
    print(len(lengths), sum(lengths.values()), sum(nx.triangles(graph).values()))


def lightgbm():
    import lightgbm
    import numpy as np

    source = np.random.default_rng(1)
    table = source.random((120_000, 40))
    wanted = table[:, 0] * 3 + (table[:, 1] > 0.5) + source.random(120_000)
    options = {"verbose": -1, "deterministic": True, "num_threads": 2, "force_row_wise": True}
    model = lightgbm.train(options, lightgbm.Dataset(table, wanted), 20)
    print(digest(model.model_to_string().encode()))


def h5py():
    import h5py
    import numpy as np

    with h5py.File("data.h5", "w", libver="latest") as file:
        data = np.arange(16_000_000, dtype=np.int64) * 7919 % 1_000_003
        file.create_dataset("a", data=data.reshape(4000, 4000), chunks=(500, 500), compression=1)
    with h5py.File("data.h5") as file:
        whole = file["a"][:]
        print(whole.sum(), file["a"][:, 17].sum(), digest(whole[::7].tobytes()))


def sympy():
    import sympy

    x, y, z = sympy.symbols("x y z")
    powers = sympy.expand((x + 2 * y + 3 * z + 1) ** 22)
    print(len(powers.args), powers.coeff(x, 11).subs({y: 3, z: 5}))
    print(sympy.factor(x**60 - 1), sympy.integrate(x**3 * sympy.exp(x) * sympy.sin(x), x))


def lxml():
    from lxml import etree

    root = etree.Element("root")
    for number in range(300_000):
        child = etree.SubElement(root, "item", number=str(number), key=str(number * 7919 % 9973))
        child.text = f"text {number}"
    text = etree.tostring(root)
    again = etree.fromstring(text, etree.XMLParser(huge_tree=True))
    print(len(text), len(again.xpath("//item[@key='17']")), digest(etree.tostring(again)))


def pillow():
    from PIL import Image, ImageFilter

    image = Image.linear_gradient("L").resize((5000, 5000)).convert("RGB")
    turned = image.rotate(33, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(5))
    out = io.BytesIO()
    Image.blend(image, turned, 0.5).save(out, "PNG", compress_level=1)
    print(len(out.getvalue()), digest(out.getvalue()))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
