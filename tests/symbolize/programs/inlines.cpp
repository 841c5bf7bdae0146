// Inlined, template, anonymous-namespace, lambda, static and cold functions, for comparing names and lines.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

[[gnu::noinline]] int local_only(int x) { return x * 7 + rand(); }
inline int leaf(int x) { return x * x + rand() % 3; }
inline int middle(int x) { return leaf(x) + leaf(x + 1); }

}  // namespace

namespace outer::inner {

template <class T>
struct Box {
  T value;
  [[gnu::noinline]] T get(int times) const {
    T sum = value;
    for (int i = 0; i < times; ++i) sum += static_cast<T>(middle(i));
    return sum;
  }
};

[[gnu::noinline]] std::string text(int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += static_cast<char>('a' + leaf(i) % 26);
  return out;
}

}  // namespace outer::inner

static int __attribute__((noinline)) file_static(int x) {
  if (x > 1000) [[unlikely]] {
    std::puts("large");
    std::abort();
  }
  return x + 1;
}

extern "C" __attribute__((noinline)) int plain_c(int x) { return middle(x) - 1; }

int main(int argc, char**) {
  std::vector<int> v;
  for (int i = 0; i < argc * 10; ++i) v.push_back(local_only(i));
  const auto add = [&](int x) { return x + v[static_cast<size_t>(x) % v.size()]; };
  int sum = 0;
  for (int i = 0; i < argc * 3; ++i) sum += add(i) + file_static(i) + plain_c(i);
  sum += outer::inner::Box<int>{argc}.get(5) + static_cast<int>(outer::inner::Box<long>{argc}.get(6));
  std::printf("%d %s\n", sum, outer::inner::text(argc * 5).c_str());
}
