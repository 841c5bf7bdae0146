// What a benchmark measured, as ./dev bench writes it: {"rows": [{"case", "what", "unit", "value", "peer"}]}.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace clew::bench {

class Figures {
 public:
  /// Takes --json FILE out of a command line; what is left are the benchmark's own arguments.
  Figures(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]) == "--json" && i + 1 < argc) {
        file_ = argv[++i];
      } else {
        arguments_.emplace_back(argv[i]);
      }
    }
  }

  const std::vector<std::string>& arguments() const { return arguments_; }

  void add(const std::string& name, const std::string& what, const std::string& unit, double value,
           const std::string& peer = "clew") {
    rows_.push_back({{"case", name}, {"what", what}, {"unit", unit}, {"value", value}, {"peer", peer}});
  }

  /// The exit status.
  int write() const {
    if (file_.empty()) return 0;
    std::ofstream out(file_);
    out << nlohmann::json{{"rows", rows_}}.dump(1) << '\n';
    return out.flush() ? 0 : 2;
  }

 private:
  std::string file_;
  std::vector<std::string> arguments_;
  nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace clew::bench
