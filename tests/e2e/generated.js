// What a JIT's stacks are made of, for some 5 seconds: docs/completeness.md.
class Shape { constructor(n) { this.n = n; } area() { return this.n * 2; } }
class Square extends Shape { area() { return this.n * this.n; } }
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
const list = [...Array(1000).keys()];
const started = process.cpuUsage();
let sum = 0;
do {
  for (let i = 0; i < 200; i++) {
    sum += list.map(x => (x % 2 ? new Shape(x) : new Square(x)).area()).filter(x => x % 3).reduce((a, b) => a + b, 0);
    sum += JSON.stringify(list.slice(0, 50)).replace(/[0-9]+/g, m => m + 1).length;
    sum += [...list].sort((a, b) => b % 7 - a % 7)[0];
  }
  sum += fib(25);
} while (process.cpuUsage(started).user < 5e6);
console.log(sum);
