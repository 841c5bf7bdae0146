// A call chain to unwind: see local_functions.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace clew::bench {

constexpr unsigned kFunctionCount = 4096;

struct Path;
using Function = void (*)(Path&);

/// Calls next[0], which calls next[1] and so on; the last calls `leaf`.
struct Path {
  const uint16_t* next = nullptr;
  size_t length = 0;
  size_t at = 0;
  Function leaf = nullptr;
  void* context = nullptr;
};

namespace without_frame_pointers {
void run(Path& path);
}
namespace with_frame_pointers {
void run(Path& path);
}
using Run = void (*)(Path& path);

}  // namespace clew::bench
