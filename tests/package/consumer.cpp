// A program of somebody else: unwinds itself through the installed library.
#include <signal.h>

#include <array>
#include <clew/unwind.hpp>
#include <cstdio>

static clew::Trace in_handler;
static std::array<clew::Frame, 64> frames;

int main() {
  std::array<uintptr_t, 64> addresses;
  const size_t count = clew::backtrace(addresses);
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    in_handler = clew::unwind_ucontext(context, frames);
  };
  sigaction(SIGUSR1, &action, nullptr);
  raise(SIGUSR1);
  const size_t tables = clew::load_tables();
  std::printf("%zu addresses, %s in a handler, %s tables\n", count, clew_end_name(in_handler.end),
              tables != 0 ? "some" : "no");
  return count >= 3 && in_handler.end == CLEW_END_ROOT && tables != 0 ? 0 : 1;
}
