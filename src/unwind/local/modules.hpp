// The files that this process has mapped, found from a signal handler.
#pragma once

#include <cstddef>
#include <cstdint>

struct clew_table_header;

namespace clew::unwind::local {

/// An executable or shared library as the dynamic linker has loaded it. Addresses are those of memory.
struct Module {
  struct Range {
    uintptr_t start = 0, end = 0;
  };
  uintptr_t start = 0, end = 0;              // of all its segments
  uintptr_t bias = 0;                        // address in memory minus virtual address in the file
  uintptr_t eh_frame_hdr = 0;                // 0: it has none
  Range eh_frame;                            // the segment that holds that
  Range text[4];                             // executable segments
  bool permanent = false;                    // cannot be unloaded: loaded with the program
  uint64_t contents = 0;                     // a hash of its notes, the build-id among them
  bool has_build_id = false;                 // so that another module in its place can be told from it
  uint64_t salt = 0;                         // made of all that tells it from another module
  const clew_table_header* table = nullptr;  // null: not loaded

  /// What stands for an address of a module that may be unloaded where addresses of all are kept: not an
  /// address of user space, and another one for another module in its place.
  uintptr_t key_of(uintptr_t address) const {
    constexpr uintptr_t kNoAddress = uintptr_t{1} << 47;
    return ((address ^ salt) & (kNoAddress - 1)) | kNoAddress;
  }

  bool covers(uintptr_t address) const { return address - start < end - start; }
  /// The executable segment that holds an address; null where none does.
  const Range* text_at(uintptr_t address) const {
    for (const Range& range : text)
      if (address - range.start < range.end - range.start) return &range;
    return nullptr;
  }
};

/// The module at an address; false where there is none. Async-signal-safe, lock-free: by glibc's
/// _dl_find_object (2.35), else by reading the dynamic linker's list with copies that may fail.
bool find_module(uintptr_t address, Module& module);

/// What else is mapped at an address, generated code or data, as a module that nothing describes. Likewise,
/// by /proc.
bool find_mapped(uintptr_t address, Module& module);

/// Reads bytes of a module's segments: plainly where it cannot go away, else by a copy that may fail.
bool read_module(const Module& module, uintptr_t address, void* out, size_t size);

/// Whether what was found as `module` is still loaded. Likewise.
bool is_still(const Module& module);

/// Publishes a module's compiled table, which must live for ever. Not in a signal handler.
void publish_table(const Module& module, const clew_table_header* table);

/// Learns which modules were loaded with the program. Run before main; again has no effect.
void learn_permanent_modules();

}  // namespace clew::unwind::local
