// A system that gives this process only so many threads more.
#pragma once

namespace shardplan {

class FewThreads {
 public:
  explicit FewThreads(int count);
  ~FewThreads();
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;
};

}  // namespace shardplan
