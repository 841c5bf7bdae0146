// A value or an error: what a function of clew returns when it can fail.
//
// Errors are values here (g++ 12 has <expected> only in C++23 mode) and no exception crosses the library's
// boundary.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace clew {

/// One line for a person: what failed, where, and what to do about it. No trailing newline.
struct Error {
  std::string message;
};

/// Either a T or an Error. `value()` and `error()` may be called only on the matching state.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return state_.index() == 0; }
  T& value() { return *std::get_if<0>(&state_); }
  const T& value() const { return *std::get_if<0>(&state_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const std::string& error() const { return std::get_if<1>(&state_)->message; }

 private:
  std::variant<T, Error> state_;
};

}  // namespace clew
