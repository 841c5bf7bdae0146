// Runs a command instruction by instruction and judges the unwinders at each of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "clew/result.hpp"
#include "prove/fault.hpp"
#include "prove/judge.hpp"

namespace clew::prove {

struct Options {
  std::vector<std::string> command;
  uint64_t sample = 1;  // unwind at one of so many instructions, chosen at random among them
  bool threads = false;
  bool faults = false;  // break something where a chain is right, and walk again
  std::vector<std::string> peers;
};

/// An instruction with findings, as it was when the first of them was made.
struct Place {
  std::string module;    // path, or "" for anonymous memory
  std::string function;  // "" where no symbol covers it
  uint64_t address = 0;  // in the file
  std::string around;    // disassembly, lines
};

struct Report {
  uint64_t instructions = 0;
  uint64_t addresses = 0;  // distinct ones of instructions
  Tally clew;
  FaultTally faults;
  std::map<std::string, Tally> peers;
  std::map<uint64_t, Place> places;  // by address in memory, of clew's findings
  double seconds = 0;
  int status = 0;  // the command's, as waitpid gives it
};

/// Runs the command to its end. An error is one line: it could not be started or traced.
Result<Report> prove(const Options& options);

}  // namespace clew::prove
