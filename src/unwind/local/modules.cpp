#include "unwind/local/modules.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/table.h"
#include "unwind/local/mappings.hpp"
#include "unwind/local/memory.hpp"

#ifdef CLEW_WITHOUT_FIND_OBJECT  // as with an older glibc, for tests
#define CLEW_FIND_OBJECT nullptr
#else
#pragma weak _dl_find_object
#define CLEW_FIND_OBJECT _dl_find_object
#endif

namespace clew::unwind::local {
namespace {

using FindObject = int (*)(void*, dl_find_object*);
const FindObject find_object = CLEW_FIND_OBJECT;

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

/// A module's bytes. The first ones, its headers and mostly its notes, come from one copy where it may go
/// away meanwhile.
class ModuleBytes {
 public:
  explicit ModuleBytes(const Module& module) : start_(module.start) {
    if (module.permanent) return;
    const size_t size = std::min(module.end - module.start, sizeof first_);
    if (copy_memory(start_, first_, size)) size_ = size;
  }
  bool read(const Module& module, uintptr_t address, void* out, size_t size) const {
    const uintptr_t at = address - start_;
    if (at >= size_ || size > size_ - at) return read_bytes(module.permanent, address, out, size);
    std::memcpy(out, first_ + at, size);
    return true;
  }

 private:
  uintptr_t start_;
  size_t size_ = 0;
  unsigned char first_[1024];
};

/// Whether a build-id is among these notes (System V ABI, chapter 5, "Note Section").
bool holds_build_id(const unsigned char* notes, size_t size) {
  Elf64_Nhdr note;
  for (size_t at = 0; at + sizeof note < size;) {
    std::memcpy(&note, notes + at, sizeof note);
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz >= 8 &&
        std::memcmp(notes + at + sizeof note, "GNU", std::min<size_t>(4, size - at - sizeof note)) == 0)
      return true;
    at += sizeof note + ((uint64_t{note.n_namesz} + 3) & ~3u) + ((uint64_t{note.n_descsz} + 3) & ~3u);
  }
  return false;
}

/// Adds notes, the first hundreds of bytes at most, to the hash of the module's contents.
void add_notes(Module& module, const ModuleBytes& bytes, uintptr_t at, size_t size) {
  unsigned char notes[256] = {};
  size = std::min(size, sizeof notes);
  if (!bytes.read(module, at, notes, size)) return;
  module.has_build_id |= holds_build_id(notes, size);
  for (size_t i = 0; i < size; i += 8) {
    uint64_t word;
    std::memcpy(&word, notes + i, 8);
    module.contents = (module.contents ^ word) * 0x9e3779b97f4a7c15u;
    module.contents ^= module.contents >> 29;
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
bool headers_at_start(const Module& module, const ModuleBytes& bytes, ProgramHeaders& headers) {
  Elf64_Ehdr header = {};
  if (!bytes.read(module, module.start, &header, sizeof header)) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > kPage || header.e_phnum > 64)
    return false;
  headers = {module.start + header.e_phoff, header.e_phnum};
  return headers.address + headers.count * sizeof(Elf64_Phdr) <= module.end;
}

/// Where the program itself lies, less where its file says; 0 where its headers do not begin the file.
uintptr_t bias_of_program(const ProgramHeaders& headers) {
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(headers.address);
  for (size_t i = 0; i < headers.count; ++i)  // they stand behind the ELF header
    if (segments[i].p_type == PT_LOAD && segments[i].p_offset == 0)
      return headers.address - sizeof(Elf64_Ehdr) - segments[i].p_vaddr;
  return 0;
}

/// Those of the program itself, as the kernel tells where they are: a statically linked one may be said to
/// start behind its headers. Takes over where its segments really start and end.
bool headers_of_program(Module& module, ProgramHeaders& headers) {
  headers = {getauxval(AT_PHDR), std::min<size_t>(getauxval(AT_PHNUM), 64)};
  if (headers.address == 0 || getauxval(AT_PHENT) != sizeof(Elf64_Phdr)) return false;
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(headers.address);
  const uintptr_t bias = bias_of_program(headers);
  uintptr_t start = UINTPTR_MAX, end = 0;
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

/// The dynamic linker's own record, as debuggers find it (DT_DEBUG); null in a program without one.
const r_debug* linker_state() {
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(getauxval(AT_PHDR));
  const size_t count = segments == nullptr ? 0 : std::min<size_t>(getauxval(AT_PHNUM), 64);
  const uintptr_t bias = bias_of_program({reinterpret_cast<uintptr_t>(segments), count});
  const ElfW(Dyn)* dynamic = nullptr;
  for (size_t i = 0; i < count; ++i)
    if (segments[i].p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(bias + segments[i].p_vaddr);
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic)
    if (dynamic->d_tag == DT_DEBUG) return reinterpret_cast<const r_debug*>(dynamic->d_un.d_ptr);
  return nullptr;
}

/// Where modules start, in ascending order, for a libc without _dl_find_object: read from the dynamic
/// linker's list, which may change and be freed meanwhile, by copies that may fail. Only ever a hint: what
/// lies at a start is read anew each time.
class StartList {
 public:
  /// The last start at or below the address; 0 where there is none.
  uintptr_t below(uintptr_t address) const {
    const Snapshot* now = current_.load(std::memory_order_acquire);
    if (now == nullptr) return 0;
    const uintptr_t* end = now->starts + std::min(now->count, kMost);
    const uintptr_t* after = std::upper_bound(now->starts, end, address);
    return after == now->starts ? 0 : after[-1];
  }
  /// Reads the list again; false where another thread, or the walk that was interrupted, is doing so.
  bool refresh() {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    // The longest unused one: a walk may still look into the others.
    Snapshot& next = snapshots_[turn_++ % std::size(snapshots_)];
    next.count = 0;
    add(next, getauxval(AT_PHDR) & ~(kPage - 1));
    add(next, getauxval(AT_SYSINFO_EHDR));
    const r_debug* state = linker_state();
    link_map map = {};
    for (uintptr_t at = state != nullptr ? reinterpret_cast<uintptr_t>(state->r_map) : 0;
         at != 0 && next.count < kMost; at = reinterpret_cast<uintptr_t>(map.l_next)) {
      if (!copy_memory(at, &map, sizeof map)) break;
      add(next, map.l_addr);
    }
    std::sort(next.starts, next.starts + next.count);
    current_.store(&next, std::memory_order_release);
    busy_.store(false, std::memory_order_release);
    return true;
  }

 private:
  static constexpr size_t kMost = 4096;
  struct Snapshot {
    size_t count;
    uintptr_t starts[kMost];
  };
  static void add(Snapshot& to, uintptr_t start) {
    char magic[SELFMAG];
    if (start % kPage == 0 && start != 0 && copy_memory(start, magic, sizeof magic) &&
        std::memcmp(magic, ELFMAG, SELFMAG) == 0)
      to.starts[to.count++] = start;
  }

  Snapshot snapshots_[4] = {};
  unsigned turn_ = 0;
  std::atomic<const Snapshot*> current_{nullptr};
  std::atomic<bool> busy_{false};
};
constinit StartList start_list;

/// The end of a module that starts there, and its .eh_frame_hdr, by its program headers.
bool read_extent(Module& module) {
  ProgramHeaders headers;
  module.end = UINTPTR_MAX;
  const ModuleBytes bytes(module);
  if (!headers_at_start(module, bytes, headers)) return false;
  uintptr_t first = UINTPTR_MAX, last = 0, eh_frame_hdr = 0;
  for (size_t i = 0; i < headers.count; ++i) {
    Elf64_Phdr segment = {};
    if (!bytes.read(module, headers.address + i * sizeof segment, &segment, sizeof segment)) return false;
    if (segment.p_type == PT_GNU_EH_FRAME) eh_frame_hdr = segment.p_vaddr;
    if (segment.p_type != PT_LOAD) continue;
    first = std::min(first, segment.p_vaddr & ~(kPage - 1));
    last = std::max(last, segment.p_vaddr + segment.p_memsz);
  }
  if (last <= first || last - first > UINTPTR_MAX - module.start) return false;
  module.end = module.start + (last - first);
  module.eh_frame_hdr = eh_frame_hdr < first ? 0 : module.start + (eh_frame_hdr - first);
  return true;
}

/// Start, end and .eh_frame_hdr of the module at an address.
bool locate(uintptr_t address, Module& module) {
  module = {};
  if (find_object != nullptr) {
    dl_find_object found;
    if (find_object(reinterpret_cast<void*>(address), &found) != 0) return false;
    module.start = reinterpret_cast<uintptr_t>(found.dlfo_map_start);
    module.end = reinterpret_cast<uintptr_t>(found.dlfo_map_end);
    module.eh_frame_hdr = reinterpret_cast<uintptr_t>(found.dlfo_eh_frame);
    module.permanent = is_permanent(module.start);
    return true;
  }
  for (int tries = 0; tries < 2; ++tries) {
    module.start = start_list.below(address);
    module.permanent = is_permanent(module.start);
    if (module.start != 0 && read_extent(module) && module.covers(address)) return true;
    if (tries == 0 && !start_list.refresh()) return false;
  }
  return false;
}

/// The bias by where the first segment, which begins with the ELF header, was meant to be. The linker's own
/// note of it is freed when the module is unloaded.
bool bias_by_start(Module& module, const ModuleBytes& bytes, const ProgramHeaders& headers) {
  for (size_t i = 0; i < headers.count; ++i) {
    Elf64_Phdr segment = {};
    if (!bytes.read(module, headers.address + i * sizeof segment, &segment, sizeof segment)) return false;
    if (segment.p_type != PT_LOAD) continue;
    module.bias = module.start - (segment.p_vaddr & ~(kPage - 1));
    return true;
  }
  return false;
}

/// Fills the bias, the ranges and the contents from the program headers.
bool read_segments(Module& module) {
  const ModuleBytes bytes(module);
  ProgramHeaders headers;
  if (headers_at_start(module, bytes, headers)) {
    if (!bias_by_start(module, bytes, headers)) return false;
  } else if (!headers_of_program(module, headers)) {
    return false;
  }
  size_t texts = 0;
  module.contents = 1;
  for (size_t i = 0; i < headers.count; ++i) {
    Elf64_Phdr segment = {};
    if (!bytes.read(module, headers.address + i * sizeof segment, &segment, sizeof segment)) return false;
    const uintptr_t start = module.bias + segment.p_vaddr;
    const uintptr_t end = start + segment.p_memsz;
    if (end < start || start < module.start || end > module.end) continue;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 && texts < std::size(module.text))
      module.text[texts++] = {start, end};
    if (segment.p_type == PT_LOAD && module.eh_frame_hdr - start < end - start)
      module.eh_frame = {start, end};
    // One of the notes is the build-id.
    if (segment.p_type == PT_NOTE) add_notes(module, bytes, start, segment.p_memsz);
  }
  return true;
}

}  // namespace

bool find_module(uintptr_t address, Module& module) {
  if (!locate(address, module)) return false;
  if (!read_segments(module)) return false;
  module.table = published_table(identity_of(module));
  module.salt = module.contents;
  for (const uintptr_t part : {module.start, module.end, module.eh_frame_hdr}) {
    module.salt = (module.salt ^ part) * 0x9e3779b97f4a7c15u;
    module.salt ^= module.salt >> 31;
  }
  module.salt &= ~uint64_t{15};  // neighbours stay neighbours, see RuleCache
  return true;
}

bool find_mapped(uintptr_t address, Module& module) {
  Mapping mapping;
  if (!find_mapping(address, mapping)) return false;
  module = {};
  module.start = mapping.start;
  module.end = mapping.end;
  if (mapping.executable) module.text[0] = {mapping.start, mapping.end};
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

bool is_still(const Module& module) {
  Module now;
  return find_module(module.start, now) && identity_of(now) == identity_of(module);
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
  const r_debug* state = linker_state();
  for (const link_map* map = state ? state->r_map : nullptr; map && count < kMaxPermanent;
       map = map->l_next) {
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
    Module module;
    if (!needed[i] || !locate(reinterpret_cast<uintptr_t>(seen[i].map->l_ld), module)) continue;
    permanent_starts[permanent++] = module.start;
  }
  std::sort(permanent_starts, permanent_starts + permanent);
  permanent_count.store(permanent, std::memory_order_release);
}

}  // namespace clew::unwind::local
