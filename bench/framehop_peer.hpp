// framehop, where it has been built (bench/framehop, a Rust library): walks from this function's own
// registers.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "local_unwinders.hpp"

namespace clew::bench {

/// A module as framehop.rs takes it; ranges are [start, end) in memory.
struct LoadedModule {
  uint64_t start, end, bias;
  uint64_t text[2], eh_frame[2], eh_frame_hdr[2];
};

inline void* const framehop_library = dlopen(CLEW_FRAMEHOP, RTLD_NOW);
inline auto* const framehop_unwind =
    framehop_library
        ? reinterpret_cast<size_t (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t*, size_t)>(
              dlsym(framehop_library, "framehop_unwind"))
        : nullptr;

/// Tells framehop what is loaded; false where it is not there.
inline bool prepare_framehop() {
  if (!framehop_unwind) return false;
  std::vector<LoadedModule> modules;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        LoadedModule module{UINT64_MAX, 0, info->dlpi_addr, {}, {}, {}};
        uint64_t frames_end = 0;
        for (int pass = 0; pass < 2; ++pass) {
          for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr)& segment = info->dlpi_phdr[i];
            const uint64_t start = info->dlpi_addr + segment.p_vaddr, end = start + segment.p_memsz;
            if (segment.p_type == PT_LOAD) {
              module.start = std::min(module.start, start);
              module.end = std::max(module.end, end);
              if ((segment.p_flags & PF_X) != 0) {
                module.text[0] = start;
                module.text[1] = end;
              }
              if (module.eh_frame_hdr[0] - start < end - start) frames_end = end;
            }
            if (segment.p_type == PT_GNU_EH_FRAME) {
              module.eh_frame_hdr[0] = start;
              module.eh_frame_hdr[1] = end;
            }
          }
        }
        constexpr uint8_t kRelative = 0x1b;  // DW_EH_PE_pcrel | DW_EH_PE_sdata4, as linkers write it
        const auto* header = reinterpret_cast<const uint8_t*>(module.eh_frame_hdr[0]);
        if (header && header[1] == kRelative) {
          int32_t offset;
          std::memcpy(&offset, header + 4, sizeof offset);
          module.eh_frame[0] = module.eh_frame_hdr[0] + 4 + static_cast<uint64_t>(int64_t{offset});
          module.eh_frame[1] = std::max(frames_end, module.eh_frame[0]);
        }
        static_cast<std::vector<LoadedModule>*>(out)->push_back(module);
        return 0;
      },
      &modules);
  auto* const prepare =
      reinterpret_cast<void (*)(const LoadedModule*, size_t)>(dlsym(framehop_library, "framehop_prepare"));
  prepare(modules.data(), modules.size());
  return true;
}

[[gnu::noinline]] inline size_t by_framehop() {
  static const uint64_t stack_end = end_of_stack();
  uint64_t ip, sp, bp;
  asm volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2" : "=r"(ip), "=r"(sp), "=r"(bp));
  return framehop_unwind(ip, sp, bp, stack_end, frames, kMost);
}

}  // namespace clew::bench
