// Text that came from a recorded program, made safe to store, print and fit in a line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace clew::profile {

/// The text with each byte that is not part of a well-formed UTF-8 sequence replaced by U+FFFD (RFC 3629: no
/// overlong forms, no surrogates, nothing above U+10FFFF). Protobuf strings must be valid UTF-8.
std::string valid_utf8(std::string_view text);

/// Valid UTF-8 with control characters (C0, DEL, C1) and those that reorder a line (bidirectional overrides,
/// line separators) replaced by `?`: what is printed cannot drive a terminal or start a line.
std::string printable(std::string_view text);

/// At most `width` characters, the middle replaced by `…`: long C++ names differ at their ends. Counts code
/// points.
std::string shortened(std::string_view text, size_t width);

/// 1234567 as 1,234,567.
std::string grouped(uint64_t number);

/// A JSON string literal, quotes included.
std::string json_string(std::string_view text);

}  // namespace clew::profile
