// Opening an ELF image: the header, program headers, section headers, and reading by offset and by address.
//
// Layout of the headers: System V ABI, chapter 4 ("ELF Header", "Sections") and chapter 5 ("Program Header");
// the counts that do not fit (e_shnum 0, PN_XNUM, SHN_XINDEX) are in section header 0.
#include "elf/image.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "elf/image_state.hpp"

namespace clew::elf {

Buffer Buffer::of_size(uint64_t size) {
  Buffer buffer;
  buffer.data.reset(new (std::nothrow) std::byte[size]);
  buffer.size = buffer.data ? size : 0;
  return buffer;
}

// ---- State: the source ----

Image::State::~State() {
  if (fd >= 0) close(fd);
}

namespace {

size_t pread_all(int fd, uint64_t offset, std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size() && offset + done <= uint64_t{INT64_MAX}) {
    const ssize_t got = pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

}  // namespace

size_t Image::State::read_file(uint64_t offset, std::span<std::byte> out) const {
  if (offset >= size) return 0;
  out = out.first(std::min<uint64_t>(out.size(), size - offset));
  if (fd >= 0) return pread_all(fd, offset, out);
  if (!memory) {
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
    return out.size();
  }
  for (const Load& load : loads) {
    const uint64_t length = load.end - load.vaddr;
    if (offset < load.offset || offset - load.offset >= length) continue;
    const uint64_t inside = offset - load.offset;
    return read_vaddr(load.vaddr + inside, out.first(std::min<uint64_t>(out.size(), length - inside)));
  }
  return 0;
}

size_t Image::State::read_vaddr(uint64_t vaddr, std::span<std::byte> out) const {
  size_t done = 0;
  auto load = std::upper_bound(loads.begin(), loads.end(), vaddr,
                               [](uint64_t address, const Load& piece) { return address < piece.vaddr; });
  if (load == loads.begin()) return 0;
  for (--load; load != loads.end() && done < out.size(); ++load) {
    const uint64_t at = vaddr + done;
    if (at < load->vaddr || at >= load->end) break;
    const uint64_t wanted = std::min<uint64_t>(out.size() - done, load->end - at);
    const auto part = out.subspan(done, wanted);
    const size_t got =
        memory ? memory(memory_bias + at, part) : read_file(load->offset + (at - load->vaddr), part);
    done += std::min<size_t>(got, wanted);
    if (got < wanted) break;
  }
  return done;
}

Buffer Image::State::read_vaddr_up_to(uint64_t vaddr, uint64_t most) const {
  // What a process's memory claims to hold need not be there: grow with what could be read.
  constexpr uint64_t kFirstBytes = 256ull << 10;
  Buffer buffer = Buffer::of_size(memory ? std::min(most, kFirstBytes) : most);
  size_t filled = read_vaddr(vaddr, buffer.span());
  while (filled == buffer.size && filled < most) {
    Buffer larger = Buffer::of_size(std::min<uint64_t>(most, buffer.size * 2));
    if (larger.size <= filled) break;
    std::memcpy(larger.data.get(), buffer.data.get(), filled);
    filled += read_vaddr(vaddr + filled, larger.span().subspan(filled));
    buffer = std::move(larger);
  }
  buffer.size = filled;
  return buffer;
}

uint64_t Image::State::loaded_from(uint64_t vaddr) const {
  for (const Load& load : loads) {
    if (vaddr >= load.vaddr && vaddr < load.end) return load.end - vaddr;
  }
  return 0;
}

std::optional<uint64_t> Image::State::offset_of_vaddr(uint64_t vaddr) const {
  for (const Load& load : loads) {
    if (vaddr >= load.vaddr && vaddr < load.end) return load.offset + (vaddr - load.vaddr);
  }
  return std::nullopt;
}

void Image::State::defect(std::string_view kind) {
  for (auto& [known, count] : defects) {
    if (known == kind) {
      ++count;
      return;
    }
  }
  defects.emplace_back(kind, 1);
}

// ---- State: headers ----

namespace {

std::optional<std::string> why_unsupported(const Elf64_Ehdr& header) {
  const auto readable = std::string("; clew reads 64-bit little-endian files for x86-64 and AArch64");
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "not an ELF file";
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "an ELF file that is not 64-bit" + readable;
  if (header.e_ident[EI_DATA] != ELFDATA2LSB) return "an ELF file that is not little-endian" + readable;
  if (header.e_ident[EI_VERSION] != EV_CURRENT) return "an ELF file of an unknown version" + readable;
  if (header.e_machine != EM_X86_64 && header.e_machine != EM_AARCH64) {
    return "an ELF file for machine " + std::to_string(header.e_machine) + readable;
  }
  return std::nullopt;
}

}  // namespace

Result<bool> Image::State::load_headers() {
  const auto out = std::as_writable_bytes(std::span(&header, 1));
  const size_t got = memory ? memory(memory_base, out) : read_file(0, out);
  if (got >= SELFMAG && std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return Error{name + ": not an ELF file"};
  if (got < out.size()) {
    return Error{name + ": too short for an ELF file (" + std::to_string(got) + " bytes can be read)"};
  }
  if (const auto why = why_unsupported(header)) return Error{name + ": " + *why};

  load_segments();
  index_loads();
  if (!memory) load_sections();
  if (header.e_type != ET_CORE) {
    find_build_id();
    if (header.e_type != ET_REL) add_missing_sections();
  }
  return true;
}

void Image::State::load_segments() {
  uint64_t count = header.e_phnum;
  if (header.e_phoff == 0 || count == 0) return;
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return defect("program headers of unknown size");
  if (count == PN_XNUM && !memory) {
    Elf64_Shdr first{};
    const auto out = std::as_writable_bytes(std::span(&first, 1));
    if (header.e_shoff != 0 && read_file(header.e_shoff, out) == out.size() && first.sh_info != 0)
      count = first.sh_info;
  }
  const uint64_t limit =
      memory ? kMaxHeaders
             : std::min(kMaxHeaders, (size - std::min(size, header.e_phoff)) / sizeof(Elf64_Phdr));
  if (count > limit) {
    defect("program headers beyond the end of the file");
    count = limit;
  }

  std::vector<Elf64_Phdr> raw(count);
  const auto out = std::as_writable_bytes(std::span(raw));
  const size_t got = memory ? memory(memory_base + header.e_phoff, out) : read_file(header.e_phoff, out);
  if (got < out.size()) defect("unreadable program headers");
  raw.resize(got / sizeof(Elf64_Phdr));
  segments.reserve(raw.size());
  for (const Elf64_Phdr& entry : raw) {
    segments.push_back({entry.p_type, entry.p_flags, entry.p_offset, entry.p_vaddr, entry.p_filesz,
                        entry.p_memsz, entry.p_align});
  }
}

void Image::State::index_loads() {
  if (memory) {
    for (const Segment& segment : segments) {
      if (segment.type == PT_LOAD) size = std::max(size, add_saturated(segment.offset, segment.file_size));
    }
    // The segment that file offset 0 would belong to says where virtual address 0 is.
    const Segment* lowest = nullptr;
    for (const Segment& segment : segments) {
      if (segment.type == PT_LOAD && (lowest == nullptr || segment.offset < lowest->offset))
        lowest = &segment;
    }
    memory_bias = lowest == nullptr ? memory_base : memory_base - (lowest->vaddr - lowest->offset);
  }

  for (const Segment& segment : segments) {
    if (segment.type != PT_LOAD || segment.file_size == 0) continue;
    uint64_t length = segment.file_size;
    if (segment.offset >= size || length > size - segment.offset) {
      defect("segments beyond the end of the file");
      if (segment.offset >= size) continue;
      length = size - segment.offset;
    }
    if (length > UINT64_MAX - segment.vaddr) {
      defect("segments beyond the end of the address space");
      continue;
    }
    loads.push_back({segment.vaddr, segment.vaddr + length, segment.offset});
  }
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) {
    return std::tie(a.vaddr, a.offset, a.end) < std::tie(b.vaddr, b.offset, b.end);
  });
  uint64_t end = 0;
  for (Load& load : loads) {
    if (load.vaddr < end) {
      defect("overlapping segments");
      const uint64_t cut = std::min(end, load.end) - load.vaddr;
      load.vaddr += cut;
      load.offset += cut;
    }
    end = std::max(end, load.end);
  }
  std::erase_if(loads, [](const Load& load) { return load.vaddr == load.end; });
}

void Image::State::load_sections() {
  if (header.e_shoff == 0) return;
  if (header.e_shentsize != sizeof(Elf64_Shdr)) return defect("section headers of unknown size");
  const uint64_t limit = std::min(kMaxHeaders, (size - std::min(size, header.e_shoff)) / sizeof(Elf64_Shdr));
  uint64_t count = header.e_shnum;
  uint32_t names_index = header.e_shstrndx;
  if (count == 0 || names_index == SHN_XINDEX) {
    Elf64_Shdr first{};
    const auto out = std::as_writable_bytes(std::span(&first, 1));
    if (read_file(header.e_shoff, out) < out.size())
      return defect("section headers beyond the end of the file");
    if (count == 0) count = first.sh_size;
    if (names_index == SHN_XINDEX) names_index = first.sh_link;
  }
  if (count > limit) {
    defect("section headers beyond the end of the file");
    count = limit;
  }

  std::vector<Elf64_Shdr> raw(count);
  const auto out = std::as_writable_bytes(std::span(raw));
  raw.resize(read_file(header.e_shoff, out) / sizeof(Elf64_Shdr));

  Buffer names;
  if (names_index < raw.size() && raw[names_index].sh_type == SHT_STRTAB) {
    const Elf64_Shdr& entry = raw[names_index];
    names = read_contents({"section names", SHT_STRTAB, 0, 0, entry.sh_offset, entry.sh_size, 0, 0});
  } else if (!raw.empty()) {
    defect("no section names");
  }

  // Many headers may share one long name: together, names may take no more than the file does.
  uint64_t name_budget = std::max<uint64_t>(size, 1 << 16);
  sections.reserve(raw.size());
  for (const Elf64_Shdr& entry : raw) {
    std::string section_name;
    if (entry.sh_name < names.size) {
      const auto* text = reinterpret_cast<const char*>(names.data.get()) + entry.sh_name;
      const uint64_t length = strnlen(text, std::min<uint64_t>(names.size - entry.sh_name, name_budget));
      name_budget -= length;
      section_name.assign(text, length);
    }
    sections.push_back({std::move(section_name), entry.sh_type, entry.sh_flags, entry.sh_addr,
                        entry.sh_offset, entry.sh_size, entry.sh_link, entry.sh_entsize});
  }
}

const Section* Image::State::find_section(std::string_view section_name) const {
  for (const Section& section : sections) {
    if (section.name == section_name) return &section;
  }
  return nullptr;
}

// ---- Image ----

Image::Image(std::unique_ptr<State> state) : state_(std::move(state)) {}
Image::Image(Image&&) noexcept = default;
Image& Image::operator=(Image&&) noexcept = default;
Image::~Image() = default;

Result<Image> Image::from_fd(int fd, std::string name) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return Error{name + ": " + std::strerror(errno)};
  if (!S_ISREG(status.st_mode)) return Error{name + ": not a regular file"};
  auto state = std::make_unique<State>();
  state->name = std::move(name);
  state->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (state->fd < 0) return Error{state->name + ": " + std::strerror(errno)};
  state->size = static_cast<uint64_t>(status.st_size);
  if (auto loaded = state->load_headers(); !loaded) return Error{loaded.error()};
  return Image(std::move(state));
}

Result<Image> Image::open(const std::string& path) {
  // Not blocking: the path may be a FIFO that nobody writes to.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Error{path + ": " + std::strerror(errno)};
  auto image = from_fd(fd, path);
  close(fd);
  return image;
}

Result<Image> Image::from_bytes(std::vector<std::byte> bytes, std::string name) {
  auto state = std::make_unique<State>();
  state->name = std::move(name);
  state->size = bytes.size();
  state->bytes = std::move(bytes);
  if (auto loaded = state->load_headers(); !loaded) return Error{loaded.error()};
  return Image(std::move(state));
}

Result<Image> Image::from_memory(ReadAt read, uint64_t base, std::string name) {
  auto state = std::make_unique<State>();
  state->name = std::move(name);
  state->memory = std::move(read);
  state->memory_base = base;
  if (auto loaded = state->load_headers(); !loaded) return Error{loaded.error()};
  return Image(std::move(state));
}

const std::string& Image::name() const { return state_->name; }
uint16_t Image::machine() const { return state_->header.e_machine; }
uint16_t Image::type() const { return state_->header.e_type; }
uint64_t Image::entry() const { return state_->header.e_entry; }
uint64_t Image::size() const { return state_->size; }
int Image::fd() const { return state_->fd; }
std::span<const Segment> Image::segments() const { return state_->segments; }
std::span<const Section> Image::sections() const { return state_->sections; }
const Section* Image::section(std::string_view name) const { return state_->find_section(name); }
std::span<const std::byte> Image::section_bytes(const Section& section) { return state_->contents(section); }
void Image::release_sections() { state_->cache.clear(); }
size_t Image::read(uint64_t vaddr, std::span<std::byte> out) const { return state_->read_vaddr(vaddr, out); }
size_t Image::read_offset(uint64_t offset, std::span<std::byte> out) const {
  return state_->read_file(offset, out);
}
std::span<const std::byte> Image::build_id() const { return state_->build_id; }
std::span<const std::pair<std::string, uint64_t>> Image::defects() const { return state_->defects; }

std::string Image::build_id_hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : state_->build_id) {
    hex += kDigits[std::to_integer<unsigned>(byte) >> 4];
    hex += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return hex;
}

std::optional<uint64_t> Image::vaddr_of_offset(uint64_t offset) const {
  constexpr uint64_t kSmallestPage = 4096;
  constexpr uint64_t kLargestPage = 65536;
  const Segment* best = nullptr;
  unsigned best_rank = 0;
  for (const Segment& segment : state_->segments) {
    if (segment.type != PT_LOAD || segment.file_size == 0) continue;
    // On x86-64 a page is 4 KiB; elsewhere it is at most what the segments are aligned to.
    const bool x86 = machine() == EM_X86_64;
    const uint64_t page = x86 || !std::has_single_bit(segment.align)
                              ? kSmallestPage
                              : std::clamp(segment.align, kSmallestPage, kLargestPage);
    const uint64_t first = segment.offset & ~(page - 1);
    if (offset < first || offset >= add_saturated(segment.offset, segment.file_size)) continue;
    const bool exact = offset >= segment.offset;
    const bool starts = offset == first;
    const unsigned rank =
        ((segment.flags & PF_X) != 0 ? 4u : 0u) + (starts ? 2u : 0u) + (exact || starts ? 1u : 0u);
    if (best == nullptr || rank > best_rank) {
      best = &segment;
      best_rank = rank;
    }
  }
  if (best == nullptr) return std::nullopt;
  return best->vaddr + (offset - best->offset);
}

}  // namespace clew::elf
