// Another unwinder, judged at the same instructions.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "prove/judge.hpp"

namespace clew::prove {

class Peer {
 public:
  virtual ~Peer() = default;
  virtual const char* name() const = 0;
  /// Mappings of code have changed, or another program runs.
  virtual void remapped() = 0;
  /// The stack of a stopped thread. The chain holds until the next call.
  virtual Chain unwind(pid_t tid) = 0;
};

/// Whether this peer is built in: "libunwind", "libdw".
bool has_peer(const std::string& name);
/// For a name that has_peer() knows.
std::unique_ptr<Peer> make_peer(const std::string& name, pid_t pid);

}  // namespace clew::prove
