// The agent as a file that a command's dynamic linker can load. It is part of this program.
#pragma once

#include <string>

#include "clew/result.hpp"
#include "process/process.hpp"

namespace clew::collect::inprocess {

struct AgentFile {
  std::string path;
  process::UniqueFd memory;  // keeps it where no directory does
};

/// Beside the tables in the cache, where it stays: programs that outlive the recording pass LD_PRELOAD on.
/// Where there is no cache, in this process's memory.
Result<AgentFile> agent_file();

}  // namespace clew::collect::inprocess
