// One file opened for symbolizing: its DWARF and its symbols. Used inside the worker (worker.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "symbolize/symbolize.hpp"

namespace clew::symbolize {

enum class Depth : uint8_t { kDwarf, kSymbols };

/// What a function's "name" begins with that is only an address: no name from a file holds a control
/// character.
constexpr char kUnnamedMark = '\x01';

class Object {
 public:
  /// `debug_fd` may be -1; a debug file whose build-id is not `build_id` is left aside. The descriptors are
  /// not kept.
  Object(int fd, int debug_fd, const std::string& build_id, Depth depth);
  ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  Lines lines(uint64_t address);

  /// About how many bytes this object holds on to.
  uint64_t memory_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace clew::symbolize
