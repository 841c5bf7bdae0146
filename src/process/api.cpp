// The C interface (clew/remote.h) over address spaces and the remote walk.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "clew/remote.h"
#include "process/address_space.hpp"
#include "unwind/remote.hpp"

namespace clew::process {
namespace {

/// Modules of the spaces that share them.
struct SharedModules {
  std::mutex one_at_a_time;
  ModuleCache cache;
};

}  // namespace
}  // namespace clew::process

struct clew_space {
  std::shared_ptr<clew::process::SharedModules> modules;
  clew::process::AddressSpace mappings;
  std::string error;
};

namespace clew::process {
namespace {

unwind::Registers registers_of(const clew_registers& from) {
  unwind::Registers registers;
  static_assert(sizeof from.value == sizeof registers.value);
  std::memcpy(registers.value.data(), from.value, sizeof from.value);
  registers.known = from.known;
  return registers;
}
// The walk fills a caller's array of them.
static_assert(sizeof(clew_registers) == sizeof(unwind::Registers) &&
              offsetof(clew_registers, value) == offsetof(unwind::Registers, value) &&
              offsetof(clew_registers, known) == offsetof(unwind::Registers, known));

/// Code is read from the module's file, which is there where a sample's process is not.
bool read_module(const AddressSpace& space, uint64_t address, void* out, size_t size) {
  const Mapping* mapping = space.find(address);
  if (!mapping || !mapping->module || !mapping->module->image) return false;
  return mapping->module->image->read(address - mapping->bias, {static_cast<std::byte*>(out), size}) == size;
}

/// What a caller's function reads.
class ReaderTarget : public unwind::Target {
 public:
  ReaderTarget(const AddressSpace& space, clew_read_memory function, void* context)
      : space_(space), read_(function), context_(context) {}
  bool read(uint64_t address, void* out, size_t size) override {
    return read_(context_, address, out, size) == size;
  }
  bool find(uint64_t address, unwind::Code& code) override { return find_code(space_, address, code); }
  bool read_code(uint64_t address, void* out, size_t size) override {
    return read_module(space_, address, out, size) || read(address, out, size);
  }

 private:
  const AddressSpace& space_;
  clew_read_memory read_;
  void* context_;
};

/// A copied piece of stack.
class CopyTarget : public unwind::Target {
 public:
  CopyTarget(const AddressSpace& space, const clew_sample& sample) : space_(space), sample_(sample) {}
  bool read(uint64_t address, void* out, size_t size) override {
    const uint64_t offset = address - sample_.stack_address;
    if (offset > sample_.stack_size || size > sample_.stack_size - offset) return false;
    std::memcpy(out, static_cast<const std::byte*>(sample_.stack) + offset, size);
    return true;
  }
  bool find(uint64_t address, unwind::Code& code) override { return find_code(space_, address, code); }
  bool read_code(uint64_t address, void* out, size_t size) override {
    return read_module(space_, address, out, size);
  }
  clew_end why_unreadable(uint64_t address) override {
    constexpr uint64_t kNearBytes = 8 << 20;  // the usual limit of a stack
    const bool above = address - sample_.stack_address < sample_.stack_size + kNearBytes;
    return above ? CLEW_END_STACK_CUT : CLEW_END_OTHER_STACK;
  }

 private:
  const AddressSpace& space_;
  const clew_sample& sample_;
};

clew_trace trace_of(const unwind::WalkResult& result) {
  return {result.frames, static_cast<uint32_t>(result.end), result.end_detail};
}

/// Runs a change, whose error or exception becomes the space's.
template <class Change>
bool changed(clew_space& space, const Change& change) {
  try {
    const std::lock_guard lock(space.modules->one_at_a_time);
    const Result<bool> result = change();
    space.error = result ? std::string() : result.error();
    return static_cast<bool>(result);
  } catch (...) {
    space.error = "out of memory";  // short enough for no memory of its own
    return false;
  }
}

Result<bool> add(clew_space& space, const clew_mapping& added) {
  if (added.size == 0 || added.size > UINT64_MAX - added.address)
    return Error{"mapping without a sound size"};
  Mapping mapping;
  mapping.start = added.address;
  mapping.end = added.address + added.size;
  mapping.offset = added.offset;
  mapping.executable = true;
  if (added.path || added.bytes) {
    const auto* bytes = static_cast<const std::byte*>(added.bytes);
    auto module = added.path ? space.modules->cache.for_file(added.path)
                             : space.modules->cache.for_bytes({bytes, bytes + added.bytes_size});
    if (!module) return Error{module.error()};
    mapping.module = std::move(*module);
    mapping.bias = bias_of(mapping);
  }
  space.mappings.map(std::move(mapping));
  return true;
}

}  // namespace
}  // namespace clew::process

using namespace clew::process;  // the functions below are C's

extern "C" {

clew_space* clew_space_new(const clew_space* sharing) {
  try {
    auto modules = sharing ? sharing->modules : std::make_shared<SharedModules>();
    return new clew_space{std::move(modules), {}, {}};
  } catch (...) {
    return nullptr;
  }
}

void clew_space_free(clew_space* space) { delete space; }

bool clew_space_set_process(clew_space* space, int pid) {
  return changed(*space, [&]() -> clew::Result<bool> {
    auto mappings = AddressSpace::of_process(pid, space->modules->cache);
    if (!mappings) return clew::Error{mappings.error()};
    space->mappings = std::move(*mappings);
    return true;
  });
}

bool clew_space_add(clew_space* space, const clew_mapping* mapping) {
  return changed(*space, [&] { return add(*space, *mapping); });
}

void clew_space_remove(clew_space* space, uint64_t address, uint64_t size) {
  changed(*space, [&]() -> clew::Result<bool> {
    space->mappings.unmap(address, size > UINT64_MAX - address ? UINT64_MAX : address + size);
    return true;
  });
}

const char* clew_space_error(const clew_space* space) { return space->error.c_str(); }

clew_trace clew_space_unwind(const clew_space* space, const clew_registers* start, clew_read_memory read,
                             void* context, clew_frame* out, size_t count, clew_registers* registers) {
  if (count == 0) return {0, CLEW_END_DEPTH_LIMIT, 0};
  ReaderTarget target(space->mappings, read, context);
  return trace_of(clew::unwind::walk(target, registers_of(*start), {out, count},
                                     reinterpret_cast<clew::unwind::Registers*>(registers)));
}

size_t clew_space_unwind_batch(const clew_space* space, const clew_sample* samples, size_t count,
                               size_t depth, clew_frame* frames, size_t capacity, clew_trace* traces) {
  clew::unwind::KnownRules known;
  size_t used = 0, done = 0;
  for (; done < count && capacity - used >= depth; ++done) {
    if (depth == 0) {
      traces[done] = {0, CLEW_END_DEPTH_LIMIT, 0};
      continue;
    }
    CopyTarget target(space->mappings, samples[done]);
    traces[done] = trace_of(
        clew::unwind::walk(target, registers_of(samples[done].registers), {frames + used, depth}, known));
    used += traces[done].frames;
  }
  return done;
}

}  // extern "C"
