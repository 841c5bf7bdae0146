// Many small functions that call each other along a path: compiled once without frame pointers and once with
// them (CLEW_TWIN names the copy), so that both walks see the same stacks.
#include <array>
#include <utility>

#include "local_functions.hpp"

namespace clew::bench::CLEW_TWIN {
namespace {

template <unsigned kNumber>
[[gnu::noinline]] void function(Path& path);

template <unsigned... kNumbers>
constexpr std::array<Function, sizeof...(kNumbers)> all(std::integer_sequence<unsigned, kNumbers...>) {
  return {function<kNumbers>...};
}
constexpr auto kFunctions = all(std::make_integer_sequence<unsigned, kFunctionCount>());

template <unsigned kNumber>
void function(Path& path) {
  // Frames of 1 to 16 words besides the return address, as compilers make them.
  volatile long room[1 + kNumber * 7 % 16];
  room[0] = static_cast<long>(path.at);
  if (path.at == path.length) {
    path.leaf(path);
  } else {
    kFunctions[path.next[path.at++]](path);
    --path.at;
  }
  asm volatile("" ::"r"(room[0]) : "memory");
}

}  // namespace

void run(Path& path) {
  path.at = 0;
  kFunctions[path.next[path.at++]](path);
}

}  // namespace clew::bench::CLEW_TWIN
