// The key-value store of one run, over the rendezvous of the whole batch.
#pragma once

#include <string>

#include "validator/supervise/progress.h"
#include "validator/supervise/rank_backend.h"
#include "validator/supervise/rendezvous_client.h"

namespace shardplan {

class RendezvousRunStore : public RunStore {
 public:
  // Keys begin with `prefix`; the supervisor forgets them when the run is over.
  RendezvousRunStore(RendezvousClient& client, std::string prefix, std::int64_t rank,
                     std::int64_t world_size, const Progress& progress);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key) override;
  void erase(const std::string& key) override;
  bool all_agree(const std::string& phase, bool mine) override;

 private:
  RendezvousClient& client_;
  std::string prefix_;
  std::int64_t rank_;
  std::int64_t world_size_;
  const Progress& progress_;
};

}  // namespace shardplan
