# Makes incompressible bytes, equal in every run, and reads all again in another order.
import hashlib
import random
import sys

source = random.Random(11)
blocks = [source.randbytes(1 << 20) for _ in range(int(sys.argv[1]))]
digest = hashlib.sha256()
for step in (7, 3):
    for index in range(len(blocks)):
        digest.update(blocks[index * step % len(blocks)])
print(digest.hexdigest())
