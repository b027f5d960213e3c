// Makes many small objects, drops every third, and prints what is left.
const objects = new Map();
for (let i = 0; i < 150000; i++) objects.set("k" + i, { i, text: "v" + i, pair: [i, i + 1] });
const sum = () => {
  let sum = 0;
  for (const [key, value] of objects) {
    sum = (sum * 31 + value.i + value.pair[1] + value.text.length + key.length) | 0;
  }
  return sum;
};
console.log(objects.size, sum());
for (let i = 0; i < 150000; i += 3) objects.delete("k" + i);
console.log(objects.size, sum(), JSON.stringify([...objects.values()].slice(0, 2000)).length);
