// Peers that were found when this was built.
#include "prove/peer.hpp"

#include <string_view>

#ifdef CLEW_HAVE_LIBUNWIND
#include <libunwind-ptrace.h>
#endif
#ifdef CLEW_HAVE_LIBDW
#include <elfutils/libdwfl.h>
#endif

namespace clew::prove {
namespace {

constexpr size_t kMaxFrames = 1 << 20;

#ifdef CLEW_HAVE_LIBUNWIND
class Libunwind : public Peer {
 public:
  ~Libunwind() override {
    if (info_) _UPT_destroy(info_);
    unw_destroy_addr_space(space_);
  }
  const char* name() const override { return "libunwind"; }
  void remapped() override {
    unw_flush_cache(space_, 0, 0);
    if (info_) _UPT_destroy(info_);
    info_ = nullptr;
  }
  Chain unwind(pid_t tid) override {
    if (info_ && tid != tid_) remapped();
    if (!info_) info_ = _UPT_create(tid_ = tid);
    chain_.clear();
    unw_cursor_t cursor;
    int result = unw_init_remote(&cursor, space_, info_);
    while (result >= 0 && chain_.size() < kMaxFrames) {
      unw_word_t pc = 0;
      unw_get_reg(&cursor, UNW_REG_IP, &pc);
      if (pc == 0) break;  // what it gives behind the outermost frame
      chain_.push_back(pc);
      result = unw_step(&cursor);
      if (result == 0) break;
    }
    return {chain_, result >= 0, result < 0 ? unw_strerror(result) : ""};
  }

 private:
  unw_addr_space_t space_ = [] {
    unw_addr_space_t made = unw_create_addr_space(&_UPT_accessors, 0);
    unw_set_caching_policy(made, UNW_CACHE_GLOBAL);
    return made;
  }();
  void* info_ = nullptr;
  pid_t tid_ = 0;
  std::vector<uint64_t> chain_;
};
#endif

#ifdef CLEW_HAVE_LIBDW
class Libdw : public Peer {
 public:
  explicit Libdw(pid_t pid) : pid_(pid) {}
  ~Libdw() override { remapped(); }
  const char* name() const override { return "libdw"; }
  void remapped() override {
    if (dwfl_) dwfl_end(dwfl_);
    dwfl_ = nullptr;
  }
  Chain unwind(pid_t tid) override {
    chain_.clear();
    if (!dwfl_) attach();
    int result = dwfl_getthread_frames(dwfl_, tid, add_frame, this);
    bool failed = result == -1;
    return {chain_, !failed, failed ? dwfl_errmsg(-1) : ""};
  }

 private:
  static int add_frame(Dwfl_Frame* frame, void* self) {
    auto& chain = static_cast<Libdw*>(self)->chain_;
    Dwarf_Addr pc = 0;
    if (!dwfl_frame_pc(frame, &pc, nullptr)) return DWARF_CB_ABORT;
    chain.push_back(pc);
    return chain.size() < kMaxFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
  }
  void attach() {
    static char* no_path = nullptr;
    static const Dwfl_Callbacks kCallbacks = {dwfl_linux_proc_find_elf, dwfl_standard_find_debuginfo, nullptr,
                                              &no_path};
    dwfl_ = dwfl_begin(&kCallbacks);
    dwfl_linux_proc_report(dwfl_, pid_);
    dwfl_report_end(dwfl_, nullptr, nullptr);
    dwfl_linux_proc_attach(dwfl_, pid_, true);
  }

  pid_t pid_;
  Dwfl* dwfl_ = nullptr;
  std::vector<uint64_t> chain_;
};
#endif

}  // namespace

bool has_peer([[maybe_unused]] const std::string& name) {
#ifdef CLEW_HAVE_LIBUNWIND
  if (name == "libunwind") return true;
#endif
#ifdef CLEW_HAVE_LIBDW
  if (name == "libdw") return true;
#endif
  return false;
}

std::unique_ptr<Peer> make_peer([[maybe_unused]] const std::string& name, [[maybe_unused]] pid_t pid) {
#ifdef CLEW_HAVE_LIBUNWIND
  if (name == "libunwind") return std::make_unique<Libunwind>();
#endif
#ifdef CLEW_HAVE_LIBDW
  if (name == "libdw") return std::make_unique<Libdw>(pid);
#endif
  return nullptr;
}

}  // namespace clew::prove
