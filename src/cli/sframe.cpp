// clew sframe dump|verify FILE: what the .sframe of a file says, and whether it keeps to the format.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "cli/cli.hpp"
#include "cli/text.hpp"
#include "sframe/sframe.hpp"

namespace clew::cli {
namespace {

using namespace clew::sframe;

constexpr uint64_t kLargestRaw = 1ull << 30;  // bytes

/// A file to read pieces of, open as long as this lives.
class Input {
 public:
  explicit Input(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status{};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) {
      error_ = std::strerror(errno);
    } else if (!S_ISREG(status.st_mode)) {
      error_ = "not a regular file";
    } else {
      bytes_ = static_cast<uint64_t>(status.st_size);
    }
  }
  ~Input() {
    if (fd_ >= 0) ::close(fd_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  const std::string& error() const { return error_; }
  uint64_t bytes() const { return bytes_; }
  size_t read(uint64_t offset, std::span<std::byte> out) const {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got =
          ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

 private:
  int fd_;
  std::string error_;
  uint64_t bytes_ = 0;
};

/// "x86_64:0x401000", "aarch64:0:be": the machine and the address of a section's bare bytes.
bool parse_raw(std::string_view raw, FileSection& section) {
  const size_t colon = raw.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view machine = raw.substr(0, colon);
  std::string_view address = raw.substr(colon + 1);
  section.big = address.ends_with(":be");
  if (*section.big) address.remove_suffix(3);
  if (machine == "x86_64" || machine == "amd64") {
    section.machine = 62;
  } else if (machine == "aarch64" || machine == "arm64") {
    section.machine = 183;
  } else if (machine == "s390x") {
    section.machine = 22;
    section.big = true;
  } else {
    return false;
  }
  int base = 10;
  if (address.starts_with("0x")) {
    address.remove_prefix(2);
    base = 16;
  }
  const auto parsed = std::from_chars(address.data(), address.data() + address.size(), section.address, base);
  return !address.empty() && parsed.ec == std::errc() && parsed.ptr == address.data() + address.size();
}

Result<FileSection> load(const SframeOptions& options) {
  const Input input(options.file);
  if (!input.error().empty()) return Error{options.file + ": " + input.error()};
  const ReadAt read = [&](uint64_t offset, std::span<std::byte> out) { return input.read(offset, out); };
  if (options.raw.empty()) {
    auto section = read_section(read, input.bytes());
    if (!section) return Error{options.file + ": " + section.error()};
    return section;
  }
  FileSection section;
  if (!parse_raw(options.raw, section))
    return Error{"--raw " + options.raw +
                 ": not ARCH:ADDRESS[:be]; ARCH is x86_64, aarch64 or s390x, as in x86_64:0x401000"};
  if (input.bytes() > kLargestRaw) return Error{options.file + ": larger than any section that clew reads"};
  section.bytes.resize(input.bytes());
  if (input.read(0, section.bytes) != section.bytes.size())
    return Error{options.file + ": changed while it was read"};
  return section;
}

std::string flags_text(const clew_sframe& header) {
  constexpr std::array<std::pair<uint8_t, const char*>, 3> kNames{
      {{CLEW_SFRAME_SORTED, "SFRAME_F_FDE_SORTED"},
       {CLEW_SFRAME_FRAME_POINTER, "SFRAME_F_FRAME_POINTER"},
       {CLEW_SFRAME_PCREL, "SFRAME_F_FDE_FUNC_START_PCREL"}}};
  std::string text;
  for (const auto& [flag, name] : kNames) {
    if ((header.flags & flag) == 0) continue;
    if (!text.empty()) text += ",\n           ";
    text += name;
  }
  return text.empty() ? "NONE" : text;
}

/// The address of a row; in a function of repeated blocks its place in the block.
uint64_t place_of(const Function& function, const clew_sframe_row& row) {
  return function.entry.mask ? row.start : function.entry.start + row.start;
}

void dump_text(const Part& part, std::string& out) {
  const clew_sframe& header = part.header;
  out += fmt::format("  Header :\n\n    Version: SFRAME_VERSION_{}\n    Flags: {}\n", header.version,
                     flags_text(header));
  if (header.fixed_fp != 0) out += fmt::format("    CFA fixed FP offset: {}\n", header.fixed_fp);
  if (header.fixed_ra != 0) out += fmt::format("    CFA fixed RA offset: {}\n", header.fixed_ra);
  out += fmt::format("    Num FDEs: {}\n    Num FREs: {}\n\n  Function Index :\n", header.functions,
                     header.rows);
  for (size_t i = 0; i < part.functions.size(); ++i) {
    const Function& function = part.functions[i];
    const clew_sframe_function& entry = function.entry;
    out += '\n';
    out += fmt::format("    func idx [{}]: pc = 0x{:x}, size = {} bytes", i, entry.start, entry.size);
    if (entry.signal || entry.flexible)
      out += fmt::format(", attr = \"{}{}\"", entry.signal ? "S" : "", entry.flexible ? "F" : "");
    if (entry.key_b) out += ", pauth = B key";
    out += fmt::format("\n    STARTPC{:<9}CFA       FP        RA           \n", entry.mask ? "[m]" : "");
    if (function.result != CLEW_SFRAME_OK)
      out += fmt::format("    broken at 0x{:x}: {}\n", function.result_at, describe(function.result));
    for (uint32_t r = 0; r < function.row_count; ++r) {
      const clew_sframe_row& row = part.rows[function.first_row + r];
      if (row.outermost) {
        out += fmt::format("    {:016x}  RA undefined\n", place_of(function, row));
        continue;
      }
      // readelf has a plus before the negative offset of a function of the default type.
      std::string cfa = describe_cfa(part, row);
      if (!entry.flexible && row.cfa.offset < 0) cfa.insert(cfa.find('-'), "+");
      out += fmt::format("    {:016x}  {:<10}{:<10}{:<13}\n", place_of(function, row), cfa,
                         describe_fp(part, row), describe_ra(part, row) + (row.is_signed ? "[s]" : ""));
    }
  }
}

void dump_json(const Part& part, std::string& out) {
  const clew_sframe& header = part.header;
  out += fmt::format(
      "{{\"version\":{},\"arch\":\"{}\",\"flags\":{},\"fixed_fp\":{},\"fixed_ra\":{},\"functions\":[",
      header.version, abi_name(header.abi), header.flags, header.fixed_fp, header.fixed_ra);
  for (size_t i = 0; i < part.functions.size(); ++i) {
    const Function& function = part.functions[i];
    const clew_sframe_function& entry = function.entry;
    out += fmt::format(
        "{}{{\"start\":{},\"size\":{},\"kind\":\"{}\",\"rep\":{},\"signal\":{},\"flexible\":{},\"key_b\":{}",
        i ? "," : "", entry.start, entry.size, entry.mask ? "mask" : "inc", entry.mask ? entry.block : 0,
        entry.signal, entry.flexible, entry.key_b);
    if (function.result != CLEW_SFRAME_OK)
      out += fmt::format(",\"broken\":{}", json_string(describe(function.result)));
    if (function.result == CLEW_SFRAME_OK && clew_sframe_outermost(&header, &entry))
      out += ",\"outermost\":true";
    out += ",\"rows\":[";
    for (uint32_t r = 0; r < function.row_count; ++r) {
      const clew_sframe_row& row = part.rows[function.first_row + r];
      out += fmt::format("{}{{\"pc\":{}", r ? "," : "", function.entry.start + row.start);
      if (row.outermost) {
        out += ",\"outermost\":true}";
        continue;
      }
      out += fmt::format(",\"cfa\":\"{}\",\"fp\":\"{}\",\"ra\":\"{}\"", describe_cfa(part, row),
                         describe_fp(part, row), describe_ra(part, row));
      out += row.is_signed ? ",\"signed\":true}" : "}";
    }
    out += "]}";
  }
  out += "]";
}

int dump(const SframeOptions& options, const FileSection& bytes) {
  const auto decoded = decode(bytes.section());
  if (!decoded) return fail(options.file + ": " + decoded.error());
  std::string out;
  if (options.json) {
    // The first part's fields stand at the top; further ones, which few files have, follow it.
    dump_json(decoded->parts[0], out);
    for (size_t i = 1; i < decoded->parts.size(); ++i) {
      out += i == 1 ? ",\"more\":[" : ",";
      dump_json(decoded->parts[i], out);
      out += "}";
    }
    out += decoded->parts.size() > 1 ? "]}\n" : "}\n";
  } else {
    for (const Part& part : decoded->parts) {
      out += "Contents of the SFrame section .sframe:\n";
      dump_text(part, out);
    }
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  if (decoded->trailing_at < bytes.bytes.size())
    note(fmt::format("{}: from 0x{:x} on nothing is shown: {}", options.file, decoded->trailing_at,
                     describe(decoded->trailing)));
  return 0;
}

std::string json_list(const std::vector<Defect>& defects) {
  std::string text = "[";
  for (const Defect& defect : defects)
    text += fmt::format("{}{{\"offset\":{},\"what\":{}}}", text.size() > 1 ? "," : "", defect.offset,
                        json_string(defect.what));
  return text + "]";
}

int verify(const SframeOptions& options, const FileSection& bytes) {
  const Verdict verdict = sframe::verify(bytes.section());
  const bool bad = !verdict.defects.empty();
  if (options.json) {
    fmt::print("{{\"verdict\":\"{}\",\"defects\":{},\"notes\":{}}}\n", bad ? "bad" : "ok",
               json_list(verdict.defects), json_list(verdict.notes));
    return bad ? 1 : 0;
  }
  const std::string file = printable(options.file);
  for (const Defect& defect : verdict.defects)
    fmt::print("{}: 0x{:x}: {}\n", file, defect.offset, printable(defect.what));
  for (const Defect& defect : verdict.notes)
    note(fmt::format("{}: 0x{:x}: {}", options.file, defect.offset, defect.what));
  if (!bad) fmt::print("{}: ok\n", file);
  return bad ? 1 : 0;
}

}  // namespace

int sframe(const SframeOptions& options) {
  const Result<FileSection> bytes = load(options);
  if (!bytes) return fail(bytes.error());
  if (!bytes->note.empty()) note(options.file + ": " + bytes->note);
  return options.verify ? verify(options, *bytes) : dump(options, *bytes);
}

}  // namespace clew::cli
