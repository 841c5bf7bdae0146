// libclew: the stacks of other processes, of copied pieces of stack, of dumps.
//
//   clew::Space space;
//   if (!space.set_process(pid)) puts(space.error());
//   clew::Trace trace = space.unwind(registers, read, frames);
//
// No exception leaves a function. See clew/remote.h for what each needs and promises, and who may call what
// at once.
#pragma once

#include <memory>
#include <span>
#include <type_traits>

#include "clew/remote.h"
#include "clew/unwind.hpp"

namespace clew {

using Registers = ::clew_registers;
using Sample = ::clew_sample;

/// What code is mapped where in one process. Movable.
class Space {
 public:
  /// Without mappings; with `sharing` it shares modules. Without memory for it every change fails.
  Space() noexcept : space_(clew_space_new(nullptr)) {}
  static Space sharing(const Space& other) noexcept { return Space(clew_space_new(other.space_.get())); }

  /// Makes the mappings those that the process has now.
  bool set_process(int pid) noexcept { return space_ && clew_space_set_process(space_.get(), pid); }
  /// Adds an executable mapping, which replaces what it overlaps.
  bool add(const clew_mapping& mapping) noexcept { return space_ && clew_space_add(space_.get(), &mapping); }
  /// Removes what is mapped in a range.
  void remove(uint64_t address, uint64_t size) noexcept {
    if (space_) clew_space_remove(space_.get(), address, size);
  }
  /// Why the last change failed; lives until the next.
  const char* error() const noexcept { return space_ ? clew_space_error(space_.get()) : "out of memory"; }

  /// The frames of a thread that stays where it is. `read(address, out, size)` returns how many bytes from
  /// the start could be read, and must not throw. `registers`, where it is as long as `out`, gets what is
  /// known in each frame.
  template <class Read>
  Trace unwind(const Registers& start, Read&& read, std::span<Frame> out,
               std::span<Registers> registers = {}) const noexcept {
    if (!space_) return {0, CLEW_END_NO_USER_STACK, 0};
    const auto call = [](void* context, uint64_t address, void* to, size_t size) noexcept -> size_t {
      return (*static_cast<std::remove_reference_t<Read>*>(context))(address, to, size);
    };
    return clew_space_unwind(space_.get(), &start, call,
                             const_cast<void*>(static_cast<const void*>(std::addressof(read))), out.data(),
                             out.size(), registers.size() >= out.size() ? registers.data() : nullptr);
  }

  /// Unwinds samples, at most `depth` frames each, into `frames`, one after the other; returns how many.
  /// `traces` must be as long as `samples`, or only as many are unwound.
  size_t unwind_batch(std::span<const Sample> samples, size_t depth, std::span<Frame> frames,
                      std::span<Trace> traces) const noexcept {
    if (!space_) return 0;
    const size_t count = samples.size() < traces.size() ? samples.size() : traces.size();
    return clew_space_unwind_batch(space_.get(), samples.data(), count, depth, frames.data(), frames.size(),
                                   traces.data());
  }

 private:
  struct Free {
    void operator()(clew_space* space) const noexcept { clew_space_free(space); }
  };
  explicit Space(clew_space* space) noexcept : space_(space) {}
  std::unique_ptr<clew_space, Free> space_;
};

}  // namespace clew
