// Foreign text made safe to show.
#include "cli/text.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>

namespace clew::cli {
namespace {

/// Length of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table 3-7), 0 where there is
/// none.
size_t utf8_length(std::string_view text) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  auto continues = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return continues(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    bool overlong = first == 0xe0 && byte(1) < 0xa0;
    bool surrogate = first == 0xed && byte(1) >= 0xa0;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    bool overlong = first == 0xf0 && byte(1) < 0x90;
    bool too_large = first == 0xf4 && byte(1) >= 0x90;
    return continues(1) && continues(2) && continues(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

bool is_control(std::string_view sequence) {
  auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7f;
  if (sequence.size() == 2 && first == 0xc2) return static_cast<unsigned char>(sequence[1]) < 0xa0;  // C1
  // What turns the direction of text around: U+202A..U+202E, U+2066..U+2069.
  if (sequence.size() != 3 || first != 0xe2) return false;
  auto second = static_cast<unsigned char>(sequence[1]);
  auto third = static_cast<unsigned char>(sequence[2]);
  return (second == 0x80 && third >= 0xaa && third <= 0xae) ||
         (second == 0x81 && third >= 0xa6 && third <= 0xa9);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    size_t length = utf8_length(text);
    std::string_view sequence = text.substr(0, length ? length : 1);
    if (length == 0 || is_control(sequence)) {
      for (char c : sequence) safe += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      safe += sequence;
    }
    text.remove_prefix(sequence.size());
  }
  return safe;
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    size_t length = utf8_length(text);
    std::string_view sequence = text.substr(0, length ? length : 1);
    if (length == 0)
      quoted += "\xef\xbf\xbd";
    else if (sequence[0] == '"' || sequence[0] == '\\')
      (quoted += '\\') += sequence[0];
    else if (length == 1 && is_control(sequence))
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(sequence[0]));
    else
      quoted += sequence;
    text.remove_prefix(sequence.size());
  }
  return quoted += '"';
}

int fail(std::string_view message) {
  fmt::print(stderr, "clew: {}\n", printable(message));
  return 2;
}

void note(std::string_view message) { fmt::print(stderr, "clew: note: {}\n", printable(message)); }

}  // namespace clew::cli
