// What every operation that needs no other rank computes, on host memory. Plain loops: they define
// the operations and are judged by the reference model.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "validator/program/program.h"

namespace shardplan {

// A View on host memory.
template <class T>
struct HostView {
  T* data = nullptr;  // nullptr: absent
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_step = 0;  // in T, from row to row
  std::int64_t step = 0;      // in T, from element to element

  bool present() const { return data != nullptr; }
  std::int64_t elements() const { return rows * cols; }
  T& operator()(std::int64_t row, std::int64_t col) const {
    return data[row * row_step + col * step];
  }
  T& operator[](std::int64_t element) const { return (*this)(element / cols, element % cols); }
};

// Where in its whole sequence a row stands, of the `rows` of it that this rank has (kRope).
inline std::int64_t position_of(const OpAttributes& a, std::int64_t row, std::int64_t rows) {
  return a.query_position + row + (row < rows / 2 ? 0 : a.position_gap);
}

template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

template <class T>
struct HostArguments {
  const OpAttributes& attributes;
  std::vector<HostView<T>> in;
  std::vector<HostView<T>> out;
};

// Throws std::logic_error for operations that communicate.
template <class T>
void run_on_host(OpKind kind, const HostArguments<T>& arguments);

}  // namespace shardplan
