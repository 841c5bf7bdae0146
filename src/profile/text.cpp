#include "profile/text.hpp"

#include <fmt/format.h>

namespace clew::profile {
namespace {

struct Decoded {
  uint32_t code_point;  // valid only where `bytes` is not 0
  size_t bytes;         // 0: not UTF-8
};

Decoded decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return {0, 0};
  uint32_t code_point = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {0, 0};
    code_point = code_point << 6 | (byte(i) & 0x3f);
  }
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < kSmallest[length] || code_point > 0x10ffff || surrogate) return {0, 0};
  return {code_point, length};
}

bool is_plain_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<uint8_t>(c) < 0x20 || static_cast<uint8_t>(c) >= 0x7f) return false;
  return true;
}

bool drives_the_terminal(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x061c || c == 0x200e || c == 0x200f ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  if (is_plain_ascii(text)) return std::string(text);
  std::string result;
  while (!text.empty()) {
    const Decoded next = decode(text);
    const size_t bytes = next.bytes ? next.bytes : 1;
    result += next.bytes ? text.substr(0, bytes) : "\xef\xbf\xbd";
    text.remove_prefix(bytes);
  }
  return result;
}

std::string printable(std::string_view text) {
  if (is_plain_ascii(text)) return std::string(text);
  std::string result;
  while (!text.empty()) {
    const Decoded next = decode(text);
    const size_t bytes = next.bytes ? next.bytes : 1;
    if (!next.bytes)
      result += "\xef\xbf\xbd";
    else if (drives_the_terminal(next.code_point))
      result += '?';
    else
      result += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return result;
}

std::string shortened(std::string_view text, size_t width) {
  size_t characters = 0;
  for (const char c : text) characters += (static_cast<uint8_t>(c) & 0xc0) != 0x80;
  if (characters <= width) return std::string(text);
  const size_t left = width / 2, right = width - left - 1;
  std::string result;
  size_t index = 0;
  bool marked = false;
  for (const char c : text) {
    if ((static_cast<uint8_t>(c) & 0xc0) != 0x80) ++index;
    if (index <= left || index > characters - right) {
      result += c;
    } else if (!marked) {
      result += "…";
      marked = true;
    }
  }
  return result;
}

std::string grouped(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, 1, ',');
  return digits;
}

std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '"':
        result += "\\\"";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '\n':
        result += "\\n";
        break;
      case '\r':
        result += "\\r";
        break;
      case '\t':
        result += "\\t";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20)
          result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          result += c;
    }
  }
  return result + '"';
}

}  // namespace clew::profile
