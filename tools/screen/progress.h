// A long search on a terminal: one row that tells how far it is, and a Ctrl-C that ends it with the
// best so far.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "search/walk/search.h"

namespace shardplan {

// "12 % of 35.3 billion plans, 178 million a second, 168 s left".
std::string progress_words(const SearchProgress& progress, double seconds);

// Rows are written to standard error once a second, if that is a terminal, each over the last one;
// the destructor leaves none.
class ProgressRow {
 public:
  ProgressRow();
  ~ProgressRow();
  ProgressRow(const ProgressRow&) = delete;
  ProgressRow& operator=(const ProgressRow&) = delete;

  // From any thread, at any time.
  void tell(const SearchProgress& progress);
  // What is done where no search tells anything: "estimating the runs".
  void tell(const std::string& words);

 private:
  void write_now_and_then();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex state_;
  std::condition_variable ended_;
  std::string words_ = "searching";
  bool is_over_ = false;
  std::thread writer_;  // none where nobody looks
};

// While it lives the first SIGINT only sets the flag; a second one ends the program.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  const std::atomic<bool>& is_set() const;
};

}  // namespace shardplan
