// Foreign text (names from binaries, paths, thread names) as it may be shown: nothing in it can steer a
// terminal, and JSON that it stands in remains valid.
#pragma once

#include <string>
#include <string_view>

namespace clew::cli {

/// Control characters and bytes that are not UTF-8 as \xNN.
std::string printable(std::string_view text);

/// A JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

/// Prints "clew: MESSAGE" on one line of stderr and returns the exit status of an error, 2.
int fail(std::string_view message);

/// The same for what went missing on the way: no error.
void note(std::string_view message);

}  // namespace clew::cli
