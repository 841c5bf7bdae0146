// Symbolizer: opens the files, asks the worker, and makes do with less where a file is too much for it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iterator>
#include <unordered_map>
#include <utility>

#include "symbolize/object.hpp"
#include "symbolize/symbolize.hpp"
#include "symbolize/worker.hpp"

namespace clew::symbolize {
namespace {

/// What a file may still be asked for, after what it did to the worker.
enum class Trust : uint8_t { kFull, kSymbols, kNone };

constexpr size_t kMaxDistrusted = 4096;

class Descriptor {
 public:
  /// A regular file, or nothing (-1). Never waits, as opening a pipe would.
  explicit Descriptor(const std::string& path) {
    if (path.empty()) return;
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status{};
    if (fd_ >= 0 && (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode))) {
      close(fd_);
      fd_ = -1;
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace

struct Symbolizer::State {
  explicit State(const Limits& limits) : worker(limits) {}
  Worker worker;
  ObjectCache objects;  // used only where no child can be had
  std::unordered_map<std::string, Trust> distrusted;
  uint64_t failures = 0;

  std::vector<Lines> here(int fd, int debug_fd, const std::string& build_id,
                          std::span<const uint64_t> addresses);
};

std::vector<Lines> Symbolizer::State::here(int fd, int debug_fd, const std::string& build_id,
                                           std::span<const uint64_t> addresses) {
  Object* const object = objects.get(fd, debug_fd, build_id, Depth::kDwarf);
  std::vector<Lines> answers;
  answers.reserve(addresses.size());
  for (const uint64_t address : addresses) answers.push_back(object->lines(address));
  return answers;
}

Symbolizer::Symbolizer(const Limits& limits) : state_(std::make_unique<State>(limits)) {}
Symbolizer::~Symbolizer() = default;

std::vector<Lines> Symbolizer::symbolize(const File& file, std::span<const uint64_t> addresses) {
  std::vector<Lines> answers;
  const Descriptor binary(file.path);
  const Descriptor debug(file.debug_path);
  // The worker wants a first file; a debug file alone serves as well.
  const int fd = binary.get() >= 0 ? binary.get() : debug.get();
  const int debug_fd = binary.get() >= 0 ? debug.get() : -1;
  if (fd >= 0 && !addresses.empty()) {
    const std::string identity = file_identity(fd, debug_fd);
    const auto known = state_->distrusted.find(identity);
    Trust trust = known == state_->distrusted.end() ? Trust::kFull : known->second;
    while (trust != Trust::kNone && answers.size() < addresses.size()) {
      const auto rest = addresses.subspan(answers.size());
      if (!state_->worker.start()) {
        auto more = state_->here(fd, debug_fd, file.build_id, rest);
        answers.insert(answers.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
        break;
      }
      const Depth depth = trust == Trust::kFull ? Depth::kDwarf : Depth::kSymbols;
      auto more = state_->worker.ask(fd, debug_fd, file.build_id, depth, rest);
      answers.insert(answers.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
      if (answers.size() == addresses.size()) break;
      ++state_->failures;
      trust = trust == Trust::kFull ? Trust::kSymbols : Trust::kNone;
      if (state_->distrusted.size() >= kMaxDistrusted) state_->distrusted.clear();
      state_->distrusted[identity] = trust;
    }
  }
  answers.resize(addresses.size());
  for (Lines& lines : answers) {
    if (lines.size() != 1 || !lines[0].function.starts_with(kUnnamedMark)) continue;
    if (file.name.empty()) {
      lines.clear();
    } else {
      lines[0].function = "[" + sanitize(file.name) + lines[0].function.substr(1) + "]";
    }
  }
  return answers;
}

uint64_t Symbolizer::child_cpu_ns() const { return state_->worker.cpu_ns(); }
uint64_t Symbolizer::failures() const { return state_->failures; }

}  // namespace clew::symbolize
