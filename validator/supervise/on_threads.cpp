#include "validator/supervise/on_threads.h"

#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace shardplan {

void on_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::thread> threads;
  threads.reserve(count);
  std::mutex gate;  // open when all are there, or the system gives no more
  std::exception_ptr missing;
  const auto pass_and_run = [&](std::size_t i) {
    {
      const std::lock_guard passing(gate);
      if (missing) {
        return;
      }
    }
    try {
      body(i);
    } catch (...) { errors[i] = std::current_exception(); }
  };
  {
    const std::lock_guard closed(gate);
    try {
      for (std::size_t i = 0; i < count; ++i) { threads.emplace_back(pass_and_run, i); }
    } catch (...) { missing = std::current_exception(); }
  }
  for (std::thread& thread : threads) { thread.join(); }
  if (missing) {
    try {
      std::rethrow_exception(missing);
    } catch (const std::system_error& error) {
      throw std::system_error(error.code(), "threads: found " + std::to_string(threads.size()) +
                                                ", expected " + std::to_string(count));
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace shardplan
