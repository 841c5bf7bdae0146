#include "unwind/local/modules.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/table.h"
#include "unwind/local/memory.hpp"

namespace clew::unwind::local {
namespace {

/// What tells one module from another that is later loaded at its address.
struct Identity {
  uintptr_t start = 0, end = 0, eh_frame_hdr = 0;
  uint64_t contents = 0;
  bool operator==(const Identity&) const = default;
};

// Start addresses of the modules that were loaded with the program, ascending. Written once, before
// `permanent_count`.
constexpr size_t kMaxPermanent = 1024;
uintptr_t permanent_starts[kMaxPermanent];
std::atomic<size_t> permanent_count{0};

// Tables by module. Entries are only ever added; a later one of the same identity counts for nothing.
struct Published {
  Identity identity;
  const clew_table_header* table = nullptr;
};
constexpr size_t kMaxPublished = 4096;
Published published[kMaxPublished];
std::atomic<size_t> published_count{0};

bool is_permanent(uintptr_t start) {
  const size_t count = permanent_count.load(std::memory_order_acquire);
  return std::binary_search(permanent_starts, permanent_starts + count, start);
}

bool read_bytes(bool permanent, uintptr_t address, void* out, size_t size) {
  if (!permanent) return copy_memory(address, out, size);
  std::memcpy(out, reinterpret_cast<const void*>(address), size);
  return true;
}

/// Adds a module's bytes, the first hundreds at most, to the hash of its contents.
void hash_contents(Module& module, uintptr_t at, size_t size) {
  uint64_t& hash = module.contents;
  unsigned char bytes[64] = {};
  for (size_t done = 0; done < std::min<size_t>(size, 256); done += sizeof bytes) {
    const size_t part = std::min(size - done, sizeof bytes);
    if (!read_bytes(module.permanent, at + done, bytes, part)) return;
    for (size_t i = 0; i < part; i += 8) {
      uint64_t word;
      std::memcpy(&word, bytes + i, 8);
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
  }
}

const clew_table_header* published_table(const Identity& identity) {
  const size_t count = published_count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i)
    if (published[i].identity == identity) return published[i].table;
  return nullptr;
}

Identity identity_of(const Module& module) {
  return {module.start, module.end, module.eh_frame_hdr, module.contents};
}

struct ProgramHeaders {
  uintptr_t address = 0;
  size_t count = 0;
};

/// Program headers of a module that starts with its ELF header, as shared libraries do.
bool headers_at_start(const Module& module, ProgramHeaders& headers) {
  Elf64_Ehdr header = {};
  if (!read_bytes(module.permanent, module.start, &header, sizeof header)) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > kPage || header.e_phnum > 64)
    return false;
  headers = {module.start + header.e_phoff, header.e_phnum};
  return headers.address + headers.count * sizeof(Elf64_Phdr) <= module.end;
}

/// Those of the program itself, as the kernel tells where they are: a statically linked one may be said to
/// start behind its headers. Takes over where its segments really start and end.
bool headers_of_program(Module& module, ProgramHeaders& headers) {
  headers = {getauxval(AT_PHDR), std::min<size_t>(getauxval(AT_PHNUM), 64)};
  if (headers.address == 0 || getauxval(AT_PHENT) != sizeof(Elf64_Phdr)) return false;
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(headers.address);
  uintptr_t bias = 0, start = UINTPTR_MAX, end = 0;
  for (size_t i = 0; i < headers.count; ++i)  // they stand behind the ELF header, which begins the file
    if (segments[i].p_type == PT_LOAD && segments[i].p_offset == 0)
      bias = headers.address - sizeof(Elf64_Ehdr) - segments[i].p_vaddr;
  for (size_t i = 0; i < headers.count; ++i) {
    const Elf64_Phdr& segment = segments[i];
    const uintptr_t at = bias + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) module.eh_frame_hdr = at;
    if (segment.p_type != PT_LOAD) continue;
    start = std::min(start, at & ~(kPage - 1));
    end = std::max(end, at + segment.p_memsz);
  }
  if (module.start < start || module.end > end) return false;  // not the program
  module.start = start;
  module.end = end;
  module.bias = bias;
  module.permanent = true;
  return true;
}

/// The bias by where the first segment, which begins with the ELF header, was meant to be. The linker's own
/// note of it is freed when the module is unloaded.
bool bias_by_start(Module& module, const ProgramHeaders& headers) {
  for (size_t i = 0; i < headers.count; ++i) {
    Elf64_Phdr segment = {};
    if (!read_bytes(module.permanent, headers.address + i * sizeof segment, &segment, sizeof segment))
      return false;
    if (segment.p_type != PT_LOAD) continue;
    module.bias = module.start - (segment.p_vaddr & ~(kPage - 1));
    return true;
  }
  return false;
}

/// Fills the bias, the ranges and the contents from the program headers.
bool read_segments(Module& module) {
  ProgramHeaders headers;
  if (headers_at_start(module, headers)) {
    if (!bias_by_start(module, headers)) return false;
  } else if (!headers_of_program(module, headers)) {
    return false;
  }
  size_t texts = 0;
  module.contents = 1;
  for (size_t i = 0; i < headers.count; ++i) {
    Elf64_Phdr segment = {};
    if (!read_bytes(module.permanent, headers.address + i * sizeof segment, &segment, sizeof segment))
      return false;
    const uintptr_t start = module.bias + segment.p_vaddr;
    const uintptr_t end = start + segment.p_memsz;
    if (end < start || start < module.start || end > module.end) continue;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 && texts < std::size(module.text))
      module.text[texts++] = {start, end};
    if (segment.p_type == PT_LOAD && module.eh_frame_hdr - start < end - start)
      module.eh_frame = {start, end};
    // One of the notes is the build-id.
    if (segment.p_type == PT_NOTE) hash_contents(module, start, segment.p_memsz);
  }
  return true;
}

}  // namespace

bool find_module(uintptr_t address, Module& module) {
  dl_find_object found;
  if (_dl_find_object(reinterpret_cast<void*>(address), &found) != 0) return false;
  module = {};
  module.start = reinterpret_cast<uintptr_t>(found.dlfo_map_start);
  module.end = reinterpret_cast<uintptr_t>(found.dlfo_map_end);
  module.eh_frame_hdr = reinterpret_cast<uintptr_t>(found.dlfo_eh_frame);
  module.permanent = is_permanent(module.start);
  if (!read_segments(module)) return false;
  module.table = published_table(identity_of(module));
  return true;
}

bool read_module(const Module& module, uintptr_t address, void* out, size_t size) {
  const auto within = [&](const Module::Range& range) {
    return address - range.start < range.end - range.start && size <= range.end - address;
  };
  bool inside = within(module.eh_frame);
  for (const Module::Range& range : module.text) inside |= within(range);
  return inside && read_bytes(module.permanent, address, out, size);
}

void publish_table(const Module& module, const clew_table_header* table) {
  const Identity identity = identity_of(module);
  const size_t count = published_count.load(std::memory_order_relaxed);
  if (count == kMaxPublished || published_table(identity)) return;
  published[count] = {identity, table};
  published_count.store(count + 1, std::memory_order_release);
}

void learn_permanent_modules() {
  if (permanent_count.load(std::memory_order_relaxed) != 0) return;
  // The program's needs and their needs, as the linker's list has them, which begins with the program. A
  // module that was opened later is in the list as well, but nothing that the program needs names it.
  struct Seen {
    const link_map* map;
    const char* name;  // DT_SONAME, or the last part of the path
  };
  static Seen seen[kMaxPermanent];
  static bool needed[kMaxPermanent];
  size_t count = 0;
  const auto strings_of = [](const link_map& map, ElfW(Sxword) tag, auto&& use) {
    const char* strings = nullptr;
    for (const ElfW(Dyn)* entry = map.l_ld; entry && entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    // The vDSO's table holds offsets, not addresses: it needs nothing anyway.
    if (reinterpret_cast<uintptr_t>(strings) < kPage || reinterpret_cast<uintptr_t>(strings) < map.l_addr)
      return;
    for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == tag) use(strings + entry->d_un.d_val);
  };
  for (const link_map* map = _r_debug.r_map; map && count < kMaxPermanent; map = map->l_next) {
    const char* slash = map->l_name ? std::strrchr(map->l_name, '/') : nullptr;
    Seen entry{map, slash ? slash + 1 : map->l_name ? map->l_name : ""};
    strings_of(*map, DT_SONAME, [&](const char* name) { entry.name = name; });
    needed[count] = count == 0 || std::strncmp(entry.name, "linux-vdso", 10) == 0 ||
                    std::strncmp(entry.name, "ld-linux", 8) == 0;
    seen[count++] = entry;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < count; ++i) {
      if (!needed[i]) continue;
      strings_of(*seen[i].map, DT_NEEDED, [&](const char* name) {
        for (size_t j = 0; j < count; ++j) {
          if (needed[j] || std::strcmp(seen[j].name, name) != 0) continue;
          needed[j] = changed = true;
        }
      });
    }
  }
  size_t permanent = 0;
  for (size_t i = 0; i < count; ++i) {
    dl_find_object found;
    if (!needed[i]) continue;
    if (_dl_find_object(const_cast<ElfW(Dyn)*>(seen[i].map->l_ld), &found) != 0) continue;
    permanent_starts[permanent++] = reinterpret_cast<uintptr_t>(found.dlfo_map_start);
  }
  std::sort(permanent_starts, permanent_starts + permanent);
  permanent_count.store(permanent, std::memory_order_release);
}

}  // namespace clew::unwind::local
