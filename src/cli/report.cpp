// `clew report`: a recording in one of the output formats.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "clew/result.hpp"
#include "cli/cli.hpp"
#include "cli/text.hpp"
#include "profile/profile.hpp"

namespace clew::cli {
namespace {

constexpr size_t kTableRows = 20;
constexpr int kFailed = 2;

int fail(const std::string& message) {
  std::fprintf(stderr, "clew report: %s\n", message.c_str());
  return kFailed;
}

constexpr std::array<std::string_view, 6> kFormats = {"summary", "summary-json", "folded",
                                                      "pprof",   "speedscope",   "otlp"};
constexpr std::array<std::string_view, 2> kLaterFormats = {"firefox", "html"};

/// What is wrong with the format's name; nothing where it is one.
std::optional<std::string> wrong_format(const std::string& format) {
  if (format.empty() || std::ranges::find(kFormats, format) != kFormats.end()) return std::nullopt;
  const bool later = std::ranges::find(kLaterFormats, format) != kLaterFormats.end();
  return fmt::format("{}; there are {}",
                     later ? fmt::format("the format {} is not built yet", format)
                           : fmt::format("no format is called '{}'", printable(format)),
                     fmt::join(kFormats, ", "));
}

bool is_binary(const std::string& format) { return format == "pprof" || format == "otlp"; }

Result<std::string> render(const ReportOptions& options) {
  if (options.format == "otlp") return profile::otlp_message(options.file);
  Result<profile::Profile> read = profile::read(options.file);
  if (!read) return Error{read.error()};
  if (options.off_cpu) profile::turn_off_cpu(*read);
  const profile::Profile& profile = *read;
  if (options.format == "summary") return profile::summary(profile);
  if (options.format == "summary-json") return profile::summary_json(profile);
  if (options.format == "folded") return profile::folded(profile);
  if (options.format == "pprof") return profile::pprof(profile);
  if (options.format == "speedscope") return profile::speedscope(profile);
  return profile::summary(profile) + '\n' + profile::table(profile, kTableRows);
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat of_a{}, of_b{};
  return stat(a.c_str(), &of_a) == 0 && stat(b.c_str(), &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

int write_all(int fd, const std::string& bytes, const std::string& where) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(fmt::format("cannot write {}: {}", where, strerror(errno)));
    done += static_cast<size_t>(count);
  }
  return 0;
}

int write_file(const std::string& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return fail(fmt::format("cannot create {}: {}", path, strerror(errno)));
  int status = write_all(fd, bytes, path);
  if (close(fd) != 0 && status == 0) status = fail(fmt::format("cannot write {}: {}", path, strerror(errno)));
  return status;
}

}  // namespace

int report(const ReportOptions& options) {
  if (options.view != "logical" && options.view != "physical")
    return fail(
        fmt::format("no view is called '{}'; there are logical and physical", printable(options.view)));
  if (const auto wrong = wrong_format(options.format)) return fail(*wrong);
  const bool to_file = !options.output.empty() && options.output != "-";
  if (!to_file && is_binary(options.format) && isatty(STDOUT_FILENO))
    return fail(fmt::format("{} is binary; write it to a file with -o FILE", options.format));
  if (to_file && same_file(options.output, options.file))
    return fail(fmt::format("{} is the recording itself; choose another file with -o", options.output));
  const Result<std::string> text = render(options);
  if (!text) return fail(text.error());
  return to_file ? write_file(options.output, *text) : write_all(STDOUT_FILENO, *text, "standard output");
}

}  // namespace clew::cli
