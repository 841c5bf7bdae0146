// Exceptions: caught here and far up, thrown again, through cleanups, through realigned and variable frames,
// from a constructor, while another is handled; and the forced unwinding of a thread.
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "features.h"

namespace {

struct Guard {
  explicit Guard(uint64_t n) : n_(n) {}
  OWN ~Guard() { sink = sink + n_; }
  uint64_t n_;
};

struct Member {
  OWN explicit Member(int n) {
    if (n == 2) throw std::invalid_argument("two");
  }
  Guard guard{4};
};
struct Whole {
  explicit Whole(int n) : second(n) {}
  Guard first{1};
  Member second;
  Guard third{3};
};

OWN void thrower(int n) {
  Guard guard(1);
  if (n == 0) throw std::runtime_error("zero");
  if (n == 1) throw 17;
  Whole whole(n);
  sink = sink + 1;
}
OWN void realigned(int n) {
  alignas(128) volatile char lanes[256];
  Guard guard(2);
  lanes[n] = 1;
  thrower(n);
  sink = sink + static_cast<uint64_t>(lanes[n]);
}
OWN void variable(int n) {
  char* room = static_cast<char*>(__builtin_alloca(static_cast<size_t>(n) + 40));
  memset(room, n, static_cast<size_t>(n) + 40);
  Guard guard(3);
  realigned(n);
  sink = sink + static_cast<uint64_t>(room[n]);
}
OWN void again(int n) {
  try {
    variable(n);
  } catch (const std::invalid_argument&) {
    sink = sink + 1;
  } catch (const std::exception& error) {
    sink = sink + strlen(error.what());
    throw;
  }
}
OWN void two_at_once(int n) {
  try {
    again(n);
  } catch (...) {
    try {
      thrower(1);
    } catch (int number) {
      sink = sink + static_cast<uint64_t>(number);
    }
    throw std::string("another");
  }
}
OWN int deep(int depth, int n) {
  Guard guard(static_cast<uint64_t>(depth));
  if (depth > 0) return deep(depth - 1, n) + 1;
  two_at_once(n);
  return 0;
}

}  // namespace

void run_exceptions() {
  for (int n = 0; n < 4; n++) {
    try {
      sink = sink + static_cast<uint64_t>(deep(2, n));
    } catch (const std::string& text) {
      sink = sink + text.size();
    } catch (int number) {
      sink = sink + static_cast<uint64_t>(number);
    }
  }
}
