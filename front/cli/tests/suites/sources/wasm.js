// Forty memories of WebAssembly (node reserves gigabytes for each), filled, grown and summed.

"use strict";

const MEMORIES = 40;
const PAGES = 64; // of 64 KiB

function section(id, bytes) {
  return [id, bytes.length, ...bytes];
}

// (import "m" "m" (memory 1)) (func (export "sum") (param i32) (result i32)): the sum of all words
// of 32 bits below an address.
const body = [
  1, 1, 0x7f, // one local: the sum
  0x03, 0x40, // loop
  0x20, 1, 0x20, 0, 0x41, 4, 0x6b, 0x22, 0, 0x28, 2, 0, 0x6a, 0x21, 1, // sum += [address -= 4]
  0x20, 0, 0x0d, 0, 0x0b, // again unless the address is 0
  0x20, 1, 0x0b,
];
const code = new Uint8Array([
  0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
  ...section(1, [1, 0x60, 1, 0x7f, 1, 0x7f]),
  ...section(2, [1, 1, 0x6d, 1, 0x6d, 2, 0, 1]),
  ...section(3, [1, 0]),
  ...section(7, [1, 3, 0x73, 0x75, 0x6d, 0, 0]),
  ...section(10, [1, body.length, ...body]),
]);
const compiled = new WebAssembly.Module(code);

const memories = [];
for (let i = 0; i < MEMORIES; i++) {
  const memory = new WebAssembly.Memory({ initial: 1, maximum: 2 * PAGES });
  const instance = new WebAssembly.Instance(compiled, { m: { m: memory } });
  memory.grow(PAGES - 1);
  const words = new Uint32Array(memory.buffer);
  for (let at = 0; at < words.length; at++) {
    words[at] = Math.imul(at + i, 2654435761);
  }
  memories.push({ memory, instance });
}
let digest = 0;
for (const { memory, instance } of memories) {
  memory.grow(1);
  digest = Math.imul(digest, 31) + instance.exports.sum(memory.buffer.byteLength);
}
console.log(memories.length, "memories", digest >>> 0);
