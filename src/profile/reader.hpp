// The steps of read() that tests and the fuzzer enter directly.
#pragma once

#include <string>
#include <string_view>

#include "profile/profile.hpp"

namespace clew::profile {

/// A recording that is in memory: the bytes of the file. `path` is for messages only.
Result<Profile> decode_file(const std::string& path, const std::string& file);

/// The protobuf message that a recording's pieces make together.
Result<Profile> decode_message(const std::string& path, std::string_view message);

}  // namespace clew::profile
