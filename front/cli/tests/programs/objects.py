"""Makes many small objects, drops every third, and prints what is left."""

COUNT = 60000
objects = {i: [str(i), (i, i * 2.5), {"a": i}] for i in range(COUNT)}


def total():
    return sum(len(text) + first + inner["a"] for text, (first, _), inner in objects.values())


print(len(objects), total())
for i in range(0, COUNT, 3):
    del objects[i]
print(len(objects), total(), objects[COUNT - 1])
