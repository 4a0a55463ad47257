#include "validator/on_threads.h"

#include <exception>
#include <thread>
#include <vector>

namespace shardplan {

void on_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (...) { errors[i] = std::current_exception(); }
    });
  }
  for (std::thread& thread : threads) { thread.join(); }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace shardplan
