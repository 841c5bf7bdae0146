// ELF core files: notes, memory, and which file was mapped where.
//
// A note is {u32 name size, u32 descriptor size, u32 type}, the name and the descriptor, each padded to four
// bytes. Those read here, all by the name "CORE":
//   NT_PRSTATUS (1), 336 bytes, one a thread: i16 signal at 12, i32 tid at 32, 27 registers of eight bytes
//   from 112:
//     r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base
//     ds es fs gs
//   NT_PRPSINFO (3): the program's name, 16 bytes from 40
//   NT_AUXV (6): pairs of u64
//   NT_FILE ('FILE'): u64 count, u64 page size, count times {u64 start, end, offset in pages}, count names
//   ending in 0
#include "process/core_file.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace clew::process {
namespace {

constexpr size_t kPrstatusBytes = 336;
constexpr size_t kPrstatusSignal = 12;
constexpr size_t kPrstatusTid = 32;
constexpr size_t kPrstatusRegisters = 112;
constexpr size_t kPrpsinfoName = 40;
constexpr size_t kPrpsinfoNameBytes = 16;
constexpr uint64_t kMaxAuxvBytes = 64 << 10;
constexpr uint64_t kMaxFileNoteBytes = 64 << 20;  // the kernel's own limit is 4 MiB by default
constexpr uint64_t kMaxLinkMapEntries = 4096;
constexpr size_t kMaxPath = 4096;

template <class T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The DWARF number of each of the kernel's registers, in its order; CLEW_REGISTERS where the walk has no use
// for it.
constexpr std::array<uint8_t, 27> kKernelOrder = {
    CLEW_R15,       CLEW_R14,       CLEW_R13,       CLEW_R12,       CLEW_RBP,       CLEW_RBX,
    CLEW_R11,       CLEW_R10,       CLEW_R9,        CLEW_R8,        CLEW_RAX,       CLEW_RCX,
    CLEW_RDX,       CLEW_RSI,       CLEW_RDI,       CLEW_REGISTERS, CLEW_RIP,       CLEW_REGISTERS,
    CLEW_REGISTERS, CLEW_RSP,       CLEW_REGISTERS, CLEW_REGISTERS, CLEW_REGISTERS, CLEW_REGISTERS,
    CLEW_REGISTERS, CLEW_REGISTERS, CLEW_REGISTERS};

constexpr size_t kOrigRax = 15;  // in that order

CoreThread thread_of_prstatus(std::span<const std::byte> note) {
  CoreThread thread;
  thread.signal = load<int16_t>(note, kPrstatusSignal);
  thread.tid = load<int32_t>(note, kPrstatusTid);
  for (size_t i = 0; i < kKernelOrder.size(); ++i) {
    if (kKernelOrder[i] == CLEW_REGISTERS) continue;
    thread.registers.value[kKernelOrder[i]] = load<uint64_t>(note, kPrstatusRegisters + 8 * i);
    thread.registers.known |= 1u << kKernelOrder[i];
  }
  thread.just_begun =
      just_begun(load<uint64_t>(note, kPrstatusRegisters + 8 * kOrigRax), thread.registers.value[CLEW_RAX]);
  return thread;
}

const char* compression_of(std::span<const unsigned char> magic) {
  struct Known {
    std::array<unsigned char, 4> bytes;
    const char* tool;
  };
  static constexpr std::array<Known, 5> kKnown = {{{{0x28, 0xb5, 0x2f, 0xfd}, "unzstd"},
                                                   {{0x04, 0x22, 0x4d, 0x18}, "unlz4"},
                                                   {{0xfd, '7', 'z', 'X'}, "unxz"},
                                                   {{0x1f, 0x8b, 0x08, 0x00}, "gunzip"},
                                                   {{'B', 'Z', 'h', '9'}, "bunzip2"}}};
  for (const Known& known : kKnown) {
    size_t significant =
        known.bytes[0] == 0x1f || known.bytes[0] == 'B' ? 3 : 4;  // what follows are flags and levels
    if (std::equal(known.bytes.begin(), known.bytes.begin() + static_cast<ptrdiff_t>(significant),
                   magic.begin()))
      return known.tool;
  }
  return nullptr;
}

std::string directory_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string file_name_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace

bool just_begun(uint64_t call, uint64_t result) {
  return result == 0 && (call == SYS_clone || call == SYS_clone3);
}

bool CoreFile::read_at(uint64_t offset, void* out, size_t size) const {
  if (offset > file_bytes_ || size > file_bytes_ - offset) return false;
  auto* to = static_cast<char*>(out);
  while (size > 0) {
    ssize_t got = pread(fd_.get(), to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return true;
}

Result<CoreFile> CoreFile::open(const std::string& path) {
  CoreFile core;
  core.path_ = path;
  core.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!core.fd_) return Error{"cannot open " + path + ": " + std::strerror(errno)};
  struct stat status;
  if (fstat(core.fd_.get(), &status) != 0) return Error{"cannot stat " + path + ": " + std::strerror(errno)};
  if (!S_ISREG(status.st_mode)) return Error{path + " is not a regular file: give a PID or a core file"};
  core.file_bytes_ = static_cast<uint64_t>(status.st_size);
  Result<bool> read = core.read_headers();
  if (!read) return Error{read.error()};
  return core;
}

Result<bool> CoreFile::read_headers() {
  std::array<unsigned char, 4> magic{};
  if (read_at(0, magic.data(), magic.size())) {
    if (const char* tool = compression_of(magic))
      return Error{path_ + " is compressed: unpack it with " + tool + " first"};
  }
  Elf64_Ehdr header;
  if (!read_at(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return Error{path_ + " is not an ELF file: give a PID or a core file"};
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    return Error{path_ + " is not a 64-bit little-endian file: only x86-64 is supported"};
  if (header.e_type != ET_CORE)
    return Error{path_ + " is an ELF file but not a core: give a PID or a core file"};
  if (header.e_machine != EM_X86_64)
    return Error{path_ + " is a core of machine " + std::to_string(header.e_machine) +
                 ": only x86-64 (62) is supported"};
  if (header.e_phentsize != sizeof(Elf64_Phdr))
    return Error{path_ + " is damaged: its program headers have a wrong size"};

  uint64_t count = header.e_phnum;
  if (count == PN_XNUM) {  // more than fit 16 bits: the first section header has the number
    Elf64_Shdr first;
    if (!read_at(header.e_shoff, &first, sizeof first))
      return Error{path_ + " is truncated: its section header is missing"};
    count = first.sh_info;
  }
  if (header.e_phoff > file_bytes_ || count > (file_bytes_ - header.e_phoff) / sizeof(Elf64_Phdr))
    return Error{path_ + " is truncated: its program headers are missing"};

  std::vector<Elf64_Phdr> notes;
  note_bytes_left_ = file_bytes_;  // what many headers over the same bytes may cost together
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Phdr segment;
    if (!read_at(header.e_phoff + i * sizeof segment, &segment, sizeof segment))
      return Error{path_ + " cannot be read"};
    if (segment.p_type == PT_NOTE) notes.push_back(segment);
    if (segment.p_type != PT_LOAD || segment.p_memsz == 0 ||
        segment.p_vaddr + segment.p_memsz < segment.p_vaddr)
      continue;
    CoreSegment memory;
    memory.start = segment.p_vaddr;
    memory.end = segment.p_vaddr + segment.p_memsz;
    memory.offset = segment.p_offset;
    uint64_t promised = std::min(segment.p_filesz, segment.p_memsz);
    memory.file_size =
        segment.p_offset > file_bytes_ ? 0 : std::min(promised, file_bytes_ - segment.p_offset);
    missing_bytes_ += promised - memory.file_size;
    memory.readable = segment.p_flags & PF_R;
    memory.writable = segment.p_flags & PF_W;
    memory.executable = segment.p_flags & PF_X;
    segments_.push_back(memory);
  }
  std::stable_sort(segments_.begin(), segments_.end(),
                   [](const CoreSegment& a, const CoreSegment& b) { return a.start < b.start; });
  // Where a damaged file's segments overlap the earlier one ends where the later begins.
  for (size_t i = 0; i + 1 < segments_.size(); ++i) {
    CoreSegment& segment = segments_[i];
    segment.end = std::min(segment.end, segments_[i + 1].start);
    segment.file_size = std::min(segment.file_size, segment.end - segment.start);
  }
  for (const Elf64_Phdr& note : notes) {
    Result<bool> read = read_notes(note.p_offset, note.p_filesz);
    if (!read) return read;
  }
  if (threads_.empty()) return Error{path_ + " has no thread's registers: it is truncated or damaged"};
  return true;
}

Result<bool> CoreFile::read_notes(uint64_t offset, uint64_t size) {
  if (offset > file_bytes_) return true;
  size = std::min(size, file_bytes_ - offset);
  uint64_t end = offset + size;
  while (end - offset >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    if (!read_at(offset, &header, sizeof header)) return true;
    uint64_t name_at = offset + sizeof header;
    uint64_t descriptor_at = name_at + (uint64_t{header.n_namesz} + 3) / 4 * 4;
    uint64_t next = descriptor_at + (uint64_t{header.n_descsz} + 3) / 4 * 4;
    uint64_t used = next - offset;
    if (descriptor_at > end || header.n_descsz > end - descriptor_at || used > note_bytes_left_) return true;
    note_bytes_left_ -= used;
    offset = std::min(next, end);

    std::array<char, 5> name{};
    if (header.n_namesz != name.size() || !read_at(name_at, name.data(), name.size()) ||
        std::memcmp(name.data(), "CORE", 5) != 0)
      continue;
    uint64_t limit = header.n_type == NT_FILE                                       ? kMaxFileNoteBytes
                     : header.n_type == NT_AUXV                                     ? kMaxAuxvBytes
                     : header.n_type == NT_PRSTATUS || header.n_type == NT_PRPSINFO ? kPrstatusBytes
                                                                                    : 0;
    if (header.n_descsz > limit) continue;
    std::vector<std::byte> note(header.n_descsz);
    if (!read_at(descriptor_at, note.data(), note.size())) return true;
    if (header.n_type == NT_PRSTATUS && note.size() == kPrstatusBytes) {
      threads_.push_back(thread_of_prstatus(note));
    } else if (header.n_type == NT_PRPSINFO && note.size() >= kPrpsinfoName + kPrpsinfoNameBytes) {
      const char* text = reinterpret_cast<const char*>(note.data()) + kPrpsinfoName;
      command_.assign(text, strnlen(text, kPrpsinfoNameBytes));
    } else if (header.n_type == NT_AUXV) {
      for (size_t i = 0; i + 16 <= note.size(); i += 16)
        auxiliary_.emplace(load<uint64_t>(note, i), load<uint64_t>(note, i + 8));
    } else if (header.n_type == NT_FILE) {
      read_mapped_files(note);
    }
  }
  return true;
}

void CoreFile::read_mapped_files(std::span<const std::byte> note) {
  if (note.size() < 16) return;
  uint64_t count = load<uint64_t>(note, 0);
  uint64_t page_size = load<uint64_t>(note, 8);
  if (count > (note.size() - 16) / 24) return;
  const char* names = reinterpret_cast<const char*>(note.data());
  size_t name = 16 + count * 24;
  for (uint64_t i = 0; i < count; ++i) {
    CoreMappedFile file;
    file.start = load<uint64_t>(note, 16 + i * 24);
    file.end = load<uint64_t>(note, 16 + i * 24 + 8);
    uint64_t pages = load<uint64_t>(note, 16 + i * 24 + 16);
    size_t length = strnlen(names + name, note.size() - name);
    file.path.assign(names + name, length);
    name = std::min(name + length + 1, note.size());
    if (file.end <= file.start || __builtin_mul_overflow(pages, page_size, &file.offset)) continue;
    mapped_files_.push_back(std::move(file));
  }
}

std::optional<uint64_t> CoreFile::auxiliary(uint64_t type) const {
  auto found = auxiliary_.find(type);
  if (found == auxiliary_.end()) return std::nullopt;
  return found->second;
}

const CoreSegment* CoreFile::segment_at(uint64_t address) const {
  auto after =
      std::upper_bound(segments_.begin(), segments_.end(), address,
                       [](uint64_t value, const CoreSegment& segment) { return value < segment.start; });
  if (after == segments_.begin()) return nullptr;
  const CoreSegment& segment = *std::prev(after);
  return address < segment.end ? &segment : nullptr;
}

size_t CoreFile::read_memory(uint64_t address, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    uint64_t at = address + done;
    const CoreSegment* segment = at < address ? nullptr : segment_at(at);
    if (!segment || at - segment->start >= segment->file_size) break;
    uint64_t within = at - segment->start;
    size_t size = std::min<uint64_t>(out.size() - done, segment->file_size - within);
    if (!read_at(segment->offset + within, out.data() + done, size)) break;
    done += size;
  }
  return done;
}

// ---- Which file was mapped where ----

namespace {

/// What the core's memory says about the file mapped from `base` on.
struct InMemory {
  std::optional<elf::Image> image;
  std::vector<std::byte> header;  // ELF header and program headers
};

InMemory look_at(const CoreFile& core, uint64_t base, const std::string& name) {
  InMemory found;
  Elf64_Ehdr header;
  std::span<std::byte> bytes(reinterpret_cast<std::byte*>(&header), sizeof header);
  if (core.read_memory(base, bytes) != sizeof header || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return found;
  if (header.e_phoff == sizeof header && header.e_phentsize == sizeof(Elf64_Phdr)) {
    found.header.resize(sizeof header + size_t{header.e_phnum} * sizeof(Elf64_Phdr));
    if (core.read_memory(base, found.header) != found.header.size()) found.header.clear();
  }
  auto read = [&core](uint64_t address, std::span<std::byte> out) { return core.read_memory(address, out); };
  Result<elf::Image> image = elf::Image::from_memory(read, base, name);
  if (image) found.image = std::move(*image);
  return found;
}

enum class Match : uint8_t { kSame, kDifferent, kUnknown };

Match compare(const InMemory& memory, const elf::Image& file, const std::string& path) {
  if (memory.image && !memory.image->build_id().empty() && !file.build_id().empty()) {
    return std::ranges::equal(memory.image->build_id(), file.build_id()) ? Match::kSame : Match::kDifferent;
  }
  if (memory.header.empty()) return Match::kUnknown;
  // Without build-ids: the ELF header up to the section headers' place (strip moves those) and the program
  // headers.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> header(memory.header.size());
  if (pread(fd.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
    return Match::kDifferent;
  constexpr size_t kBefore = offsetof(Elf64_Ehdr, e_shoff);
  bool same = std::equal(header.begin(), header.begin() + kBefore, memory.header.begin()) &&
              std::equal(header.begin() + sizeof(Elf64_Ehdr), header.end(),
                         memory.header.begin() + sizeof(Elf64_Ehdr));
  return same ? Match::kSame : Match::kDifferent;
}

void compile_table(Module& module) {
  module.build_id = module.image->build_id_hex();
  std::optional<elf::Image> debug;
  if (module.image->fd() >= 0) debug = open_debug_frame(*module.image, module.path, module.root);
  auto table = table::load_or_compile(*module.image, nullptr, debug ? &*debug : nullptr);
  if (table)
    module.table = *table;
  else
    module.why_no_table = table.error();
}

/// Finds files for the names in a core; remembers them, so that each is opened once.
class Finder {
 public:
  Finder(const CoreFile& core, const std::string& executable, std::vector<CoreNote>& notes)
      : core_(core), executable_(executable), notes_(notes) {
    if (!executable.empty()) directories_.push_back(directory_of(executable));
    directories_.push_back(directory_of(core.path()));
  }

  /// The module of the file named `path` whose first page is at `base` (0: unknown).
  Result<std::shared_ptr<Module>> module(const std::string& path, uint64_t base, bool is_program) {
    auto [place, fresh] = modules_.try_emplace(path);
    if (!fresh) return place->second;
    InMemory memory = base != 0 ? look_at(core_, base, path) : InMemory{};
    auto module = std::make_shared<Module>();
    module->path = path;

    if (is_program && !executable_.empty()) {
      Result<elf::Image> image = elf::Image::open(executable_);
      if (!image) return Error{image.error()};
      if (compare(memory, *image, executable_) == Match::kDifferent)
        return Error{executable_ + " is not the program of " + core_.path() + " (" + path +
                     "): give the very file that ran"};
      take(*module, std::move(*image), executable_);
    }
    bool other_file = false;
    if (!module->image) {
      for (const std::string& candidate : candidates(path)) {
        Result<elf::Image> image = elf::Image::open(candidate);
        if (!image) continue;
        Match match = compare(memory, *image, candidate);
        other_file |= match == Match::kDifferent;
        // A file that only has the right name is not enough, the one at the very path is where the core
        // cannot tell.
        if (match == Match::kDifferent || (match == Match::kUnknown && candidate != path)) continue;
        take(*module, std::move(*image), candidate);
        break;
      }
    }
    if (!module->image) {
      if (base != 0 || !path.empty())
        notes_.push_back(
            {path, path + (other_file ? " is not the file that the core was made with" : " was not found") +
                       ": what the core's memory holds of it is used"});
      if (memory.image) {
        module->image = std::make_unique<elf::Image>(std::move(*memory.image));
        compile_table(*module);
      } else {
        module->why_no_table = "the file was not found";
      }
    }
    place->second = module;
    return module;
  }

  /// A module that has no file at all: the vDSO.
  std::shared_ptr<Module> from_memory(uint64_t base, const std::string& name) {
    InMemory memory = look_at(core_, base, name);
    if (!memory.image) return nullptr;
    auto module = std::make_shared<Module>();
    module->path = name;
    module->image = std::make_unique<elf::Image>(std::move(*memory.image));
    compile_table(*module);
    return module;
  }

 private:
  std::vector<std::string> candidates(const std::string& path) const {
    std::vector<std::string> all;
    if (path.starts_with('/')) all.push_back(path);
    for (const std::string& directory : directories_) all.push_back(directory + "/" + file_name_of(path));
    return all;
  }

  static void take(Module& module, elf::Image image, const std::string& found_at) {
    module.path = found_at;
    module.image = std::make_unique<elf::Image>(std::move(image));
    compile_table(module);
  }

  const CoreFile& core_;
  const std::string& executable_;
  std::vector<CoreNote>& notes_;
  std::vector<std::string> directories_;
  std::unordered_map<std::string, std::shared_ptr<Module>> modules_;
};

constexpr uint64_t kPage = 4096;

/// The bias of `module` where `length` bytes from file offset `offset` on are mapped at `start`; the segment
/// whose pages these are, one with the same right to execute first. Nothing where no segment fits.
struct Fit {
  uint64_t bias;
  bool executable;
};
std::optional<Fit> fit(const Module& module, uint64_t start, uint64_t offset, uint64_t length,
                       std::optional<bool> executable) {
  std::optional<Fit> found;
  if (!module.image) return found;
  for (const elf::Segment& segment : module.image->segments()) {
    if (segment.type != PT_LOAD) continue;
    uint64_t first = segment.offset & ~(kPage - 1);
    uint64_t last = segment.offset + segment.file_size;
    if (last < segment.offset || offset >= last || offset + length <= first) continue;
    bool runs = segment.flags & PF_X;
    Fit here{start - offset + segment.offset - segment.vaddr, runs};
    if (executable && runs == *executable) return here;
    if (!found) found = here;
  }
  return found;
}

Mapping anonymous(const CoreSegment& segment) {
  Mapping mapping;
  mapping.start = segment.start;
  mapping.end = segment.end;
  mapping.executable = segment.executable;
  return mapping;
}

/// By NT_FILE. Returns false where there is none.
Result<bool> map_by_notes(const CoreFile& core, Finder& finder, AddressSpace& space) {
  if (core.mapped_files().empty()) return false;
  std::optional<uint64_t> program_header = core.auxiliary(AT_PHDR);
  std::string program;
  std::unordered_map<std::string, uint64_t> base;  // where offset 0 of a file is
  std::unordered_set<std::string> with_code;       // data files are mapped too, and need not be opened
  for (const CoreMappedFile& file : core.mapped_files()) {
    if (file.offset == 0) base.try_emplace(file.path, file.start);
    if (program_header && *program_header >= file.start && *program_header < file.end) program = file.path;
    const CoreSegment* segment = core.segment_at(file.start);
    if (!segment || segment->executable) with_code.insert(file.path);
  }
  if (program.empty()) program = core.mapped_files().front().path;
  for (const CoreMappedFile& file : core.mapped_files()) {
    auto first = base.find(file.path);
    uint64_t from = first == base.end() ? 0 : first->second;
    const CoreSegment* segment = core.segment_at(file.start);
    Mapping mapping;
    mapping.start = file.start;
    mapping.end = file.end;
    mapping.offset = file.offset;
    mapping.path = file.path;
    mapping.executable = segment && segment->executable;
    if (with_code.contains(file.path)) {
      Result<std::shared_ptr<Module>> module = finder.module(file.path, from, file.path == program);
      if (!module) return Error{module.error()};
      mapping.module = *module;
      std::optional<bool> executable;
      if (segment) executable = segment->executable;
      if (auto place = fit(**module, file.start, file.offset, file.end - file.start, executable)) {
        mapping.bias = place->bias;
        if (!segment) mapping.executable = place->executable;  // gcore leaves out what the file holds anyway
      } else {
        mapping.bias = from;
      }
    }
    space.map(std::move(mapping));
  }
  return true;
}

void map_segments(const std::shared_ptr<Module>& module, uint64_t bias, const std::string& name,
                  const CoreFile& core, AddressSpace& space) {
  if (!module->image) return;
  for (const elf::Segment& segment : module->image->segments()) {
    if (segment.type != PT_LOAD || segment.file_size == 0) continue;
    Mapping mapping;
    mapping.start = (segment.vaddr & ~(kPage - 1)) + bias;
    mapping.end = ((segment.vaddr + segment.file_size + kPage - 1) & ~(kPage - 1)) + bias;
    if (mapping.end <= mapping.start) continue;
    const CoreSegment* memory = core.segment_at(mapping.start);
    mapping.offset = segment.offset & ~(kPage - 1);
    mapping.bias = bias;
    mapping.executable = memory ? memory->executable : (segment.flags & PF_X) != 0;
    mapping.path = name;
    mapping.module = module;
    space.map(std::move(mapping));
  }
}

std::string read_string(const CoreFile& core, uint64_t address) {
  std::string text(kMaxPath, '\0');
  size_t got = core.read_memory(address, std::as_writable_bytes(std::span(text.data(), text.size())));
  text.resize(strnlen(text.data(), got));
  return text;
}

template <class T>
bool read_value(const CoreFile& core, uint64_t address, T& value) {
  return core.read_memory(address, std::span(reinterpret_cast<std::byte*>(&value), sizeof value)) ==
         sizeof value;
}

/// Where the ELF header of the object around `address` is: the start of the nearest segment below that begins
/// with one.
uint64_t header_below(const CoreFile& core, uint64_t address) {
  auto segments = core.segments();
  for (size_t i = segments.size(); i-- > 0;) {
    if (segments[i].start > address) continue;
    std::array<char, SELFMAG> magic{};
    if (read_value(core, segments[i].start, magic) && std::memcmp(magic.data(), ELFMAG, SELFMAG) == 0)
      return segments[i].start;
  }
  return 0;
}

/// Without NT_FILE: the program through AT_PHDR, the libraries through its DT_DEBUG and the dynamic linker's
/// link map.
Result<bool> map_by_link_map(const CoreFile& core, const std::string& executable, Finder& finder,
                             AddressSpace& space) {
  std::optional<uint64_t> header = core.auxiliary(AT_PHDR);
  uint64_t base = header ? header_below(core, *header) : 0;
  std::string name = executable;
  if (name.empty()) {
    if (auto path = core.auxiliary(AT_EXECFN)) name = read_string(core, *path);
  }
  if (name.empty()) name = core.command();
  Result<std::shared_ptr<Module>> program = finder.module(name, base, true);
  if (!program) return Error{program.error()};
  if (!(*program)->image) return true;
  uint64_t bias = 0;
  std::optional<uint64_t> dynamic;
  if (auto entry = core.auxiliary(AT_ENTRY)) bias = *entry - (*program)->image->entry();
  map_segments(*program, bias, name, core, space);
  for (const elf::Segment& segment : (*program)->image->segments())
    if (segment.type == PT_DYNAMIC) dynamic = segment.vaddr + bias;

  uint64_t debug = 0;
  for (uint64_t i = 0; dynamic && i < kPage / sizeof(Elf64_Dyn); ++i) {
    Elf64_Dyn entry;
    if (!read_value(core, *dynamic + i * sizeof entry, entry) || entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_DEBUG) debug = entry.d_un.d_ptr;
  }
  uint64_t next = 0;
  if (debug == 0 || !read_value(core, debug + offsetof(r_debug, r_map), next)) return true;
  for (uint64_t i = 0; i < kMaxLinkMapEntries && next != 0; ++i) {
    struct {
      uint64_t address, name, dynamic, next;
    } entry;
    if (!read_value(core, next, entry)) break;
    next = entry.next;
    if (i == 0 || entry.dynamic == 0) continue;  // the program itself
    uint64_t first_page = header_below(core, entry.dynamic);
    if (core.auxiliary(AT_SYSINFO_EHDR) == first_page) continue;
    Result<std::shared_ptr<Module>> module = finder.module(read_string(core, entry.name), first_page, false);
    if (module) map_segments(*module, entry.address, (*module)->path, core, space);
  }
  return true;
}

}  // namespace

Result<CoreSpace> map_core(const CoreFile& core, const std::string& executable) {
  CoreSpace result;
  for (const CoreSegment& segment : core.segments()) result.space.map(anonymous(segment));
  Finder finder(core, executable, result.notes);
  Result<bool> mapped = map_by_notes(core, finder, result.space);
  if (!mapped) return Error{mapped.error()};
  if (!*mapped) {
    Result<bool> linked = map_by_link_map(core, executable, finder, result.space);
    if (!linked) return Error{linked.error()};
  }
  if (auto vdso = core.auxiliary(AT_SYSINFO_EHDR)) {
    const CoreSegment* segment = core.segment_at(*vdso);
    if (auto module = segment ? finder.from_memory(*vdso, "[vdso]") : nullptr) {
      Mapping mapping = anonymous(*segment);
      mapping.path = "[vdso]";
      if (auto place = fit(*module, *vdso, 0, mapping.end - mapping.start, true)) mapping.bias = place->bias;
      mapping.module = std::move(module);
      result.space.map(std::move(mapping));
    }
  }
  if (core.missing_bytes() > 0)
    result.notes.push_back({"", core.path() + " is truncated: " + std::to_string(core.missing_bytes()) +
                                    " bytes of memory are missing"});
  return result;
}

bool CoreTarget::find(uint64_t address, unwind::Code& code) { return find_code(space_, address, code); }

bool CoreTarget::read(uint64_t address, void* out, size_t size) {
  auto* bytes = static_cast<std::byte*>(out);
  size_t done = 0;
  while (done < size) {
    uint64_t at = address + done;
    if (at < address) return false;
    size_t got = core_.read_memory(at, {bytes + done, size - done});
    if (got == 0) {
      // What the process had written is gone; what it only read is in the file.
      const CoreSegment* segment = core_.segment_at(at);
      const Mapping* mapping = space_.find(at);
      if ((segment && segment->writable) || !mapping || !mapping->module || !mapping->module->image)
        return false;
      size_t here = std::min<uint64_t>(size - done, mapping->end - at);
      got = mapping->module->image->read(at - mapping->bias, {bytes + done, here});
      if (got == 0) return false;
    }
    done += got;
  }
  return true;
}

}  // namespace clew::process
