// Before main: what the recorder asked for, the compact tables, the first thread's timer.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "agent/agent.hpp"
#include "agent/process_ring.hpp"
#include "clew/unwind.h"

namespace clew::agent {

constinit Config config;

namespace {

/// DIRECTORY:PID:PERIOD; the directory holds no colon.
bool parse_config(const char* text, Config& out) {
  const char* colon = text != nullptr ? std::strchr(text, ':') : nullptr;
  if (colon == nullptr || static_cast<size_t>(colon - text) >= sizeof out.directory) return false;
  std::memcpy(out.directory, text, static_cast<size_t>(colon - text));
  char* end = nullptr;
  out.recorder = static_cast<int>(std::strtol(colon + 1, &end, 10));
  if (*end != ':' || out.recorder <= 0) return false;
  out.period_ns = std::strtoull(end + 1, &end, 10);
  return *end == '\0' && out.period_ns >= 10'000 && out.period_ns <= 10'000'000'000;
}

__attribute__((constructor)) void start() {
  Config asked;
  if (!parse_config(std::getenv(kConfigVariable), asked) || !prepare_ring()) return;
  Thread* thread = make_thread();
  if (thread == nullptr) return;
  clew_load_tables();
  config = asked;
  take_signal();
  follow_threads();
  arm(thread);
}

}  // namespace
}  // namespace clew::agent
