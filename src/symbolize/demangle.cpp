// Names for people: demangling, and making names from untrusted files harmless.
//
// Sources: Itanium C++ ABI (section 5.1, mangling), RFC 2603 (Rust v0); legacy Rust names are Itanium names
// whose last component is `h` and 16 hex digits and whose punctuation is written as $LT$, $u7b$, `..`.
#include <llvm/Demangle/Demangle.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "symbolize/symbolize.hpp"

namespace clew::symbolize {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x110000) {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

/// Where a legacy Rust name's "::h0123456789abcdef" starts, if it ends in one.
std::optional<size_t> legacy_rust_hash(std::string_view name) {
  constexpr size_t kDigits = 16;
  if (name.size() <= kDigits + 3) return std::nullopt;
  const size_t start = name.size() - kDigits - 3;
  if (name.substr(start, 3) != "::h") return std::nullopt;
  for (char c : name.substr(start + 3)) {
    if (!is_hex(c)) return std::nullopt;
  }
  return start;
}

/// One $...$ escape at the front of `text`: what it stands for is appended to `out`. Returns its length, 0 if
/// none.
size_t legacy_rust_escape(std::string_view text, std::string& out) {
  constexpr std::array<std::pair<std::string_view, char>, 8> kEscapes = {{{"$SP$", '@'},
                                                                          {"$BP$", '*'},
                                                                          {"$RF$", '&'},
                                                                          {"$LT$", '<'},
                                                                          {"$GT$", '>'},
                                                                          {"$LP$", '('},
                                                                          {"$RP$", ')'},
                                                                          {"$C$", ','}}};
  for (const auto& [escape, character] : kEscapes) {
    if (text.starts_with(escape)) {
      out += character;
      return escape.size();
    }
  }
  if (!text.starts_with("$u")) return 0;
  uint32_t code = 0;
  size_t i = 2;
  for (; i < text.size() && i < 8 && is_hex(text[i]); ++i) {
    code = code * 16 + static_cast<uint32_t>(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
  }
  if (i == 2 || i >= text.size() || text[i] != '$') return 0;
  append_utf8(out, code);
  return i + 1;
}

/// The punctuation of a legacy Rust path, hash already dropped.
std::string legacy_rust_path(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  bool component_start = true;
  for (size_t i = 0; i < path.size();) {
    const std::string_view rest = path.substr(i);
    if (component_start &&
        rest.starts_with("_$")) {  // an identifier may not begin with '$', so an underscore leads
      ++i;
      component_start = false;
      continue;
    }
    component_start = false;
    if (rest.starts_with("::")) {
      out += "::";
      i += 2;
      component_start = true;
    } else if (rest.starts_with("..")) {
      out += "::";
      i += 2;
    } else if (const size_t escape = rest[0] == '$' ? legacy_rust_escape(rest, out) : 0; escape != 0) {
      i += escape;
    } else {
      out += rest[0];
      ++i;
    }
  }
  return out;
}

/// Length of the valid UTF-8 sequence at the front of `text`, 0 where it is not valid (RFC 3629), and its
/// code point.
size_t utf8_length(std::string_view text, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    code = lead;
    return 1;
  }
  size_t length = 0;
  uint32_t least = 0;
  if ((lead & 0xe0) == 0xc0) {
    length = 2, least = 0x80, code = lead & 0x1f;
  } else if ((lead & 0xf0) == 0xe0) {
    length = 3, least = 0x800, code = lead & 0x0f;
  } else if ((lead & 0xf8) == 0xf0) {
    length = 4, least = 0x10000, code = lead & 0x07;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
  return length;
}

}  // namespace

std::string demangle(const std::string& name) {
  std::string readable = llvm::demangle(name);
  // " (.llvm.123)": ThinLTO's mark for a promoted local symbol; a hash that no user wrote.
  if (const size_t mark = readable.find(" (.llvm."); mark != std::string::npos && readable.back() == ')') {
    readable.resize(mark);
  }
  if (name.starts_with("_ZN")) {
    if (const auto hash = legacy_rust_hash(readable))
      return legacy_rust_path(std::string_view(readable).substr(0, *hash));
  }
  return readable;
}

std::string sanitize(std::string_view name) {
  constexpr std::string_view kCut = "...";
  std::string out;
  out.reserve(std::min(name.size(), kMaxNameBytes));
  size_t cut_at = 0;  // where a name that turns out too long is cut, so that no character is
  for (size_t i = 0; i < name.size();) {
    uint32_t code = 0;
    const size_t length = utf8_length(name.substr(i), code);
    std::string_view piece = name.substr(i, length);
    if (length == 0) {
      piece = kReplacement;
    } else if (code < 0x20 || (code >= 0x7f && code < 0xa0)) {
      piece = "?";
    }
    i += length == 0 ? 1 : length;
    if (out.size() + piece.size() > kMaxNameBytes) {
      out.resize(cut_at);
      return out += kCut;
    }
    out += piece;
    if (out.size() + kCut.size() <= kMaxNameBytes) cut_at = out.size();
  }
  return out;
}

}  // namespace clew::symbolize
