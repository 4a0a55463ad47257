// The searches that a question about several clusters, sizes or targets consists of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/options/options.h"
#include "tools/options/search_question.h"

namespace shardplan {

struct SweepSize {
  std::size_t cluster = 0;    // of those asked for
  std::int64_t num_gpus = 0;  // 0: the cluster's own number
};

struct SweepQuestion {
  SearchQuestion question;  // with the overlaps on that nobody has set
  SearchQuestion plain;     // as it was asked
};

class SweepQuestions {
 public:
  // InputError for clusters, sizes and prices that cannot be. The library must outlive it.
  SweepQuestions(const Options& options, const Library& library);

  // What is asked, by cluster.
  std::vector<SweepSize> sizes() const;
  SweepQuestion of(const SweepSize& size) const;

 private:
  Options options_of(const SweepSize& size) const;

  const Options options_;
  const Library& library_;
  std::vector<std::int64_t> sizes_ = {0};
  std::vector<std::string> clusters_;
  std::vector<std::string> prices_;
};

// The price of the options over that of the cluster's file.
void set_price(ClusterSpec& cluster, const Options& options);

}  // namespace shardplan
