#include "validator/supervise/run_store.h"

#include <chrono>
#include <utility>

#include "validator/supervise/rendezvous.h"

namespace shardplan {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // how soon a wait notices that it must end

class Waiting {
 public:
  explicit Waiting(ProgressPage& page) : page_(page) { page_.waiting = 1; }
  ~Waiting() { page_.waiting = 0; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  ProgressPage& page_;
};

template <class Call>
auto or_echo(const Call& call) {
  try {
    return call();
  } catch (const RendezvousError& error) {
    throw RunFailure({.status = RunStatus::kCrash,
                      .reason = error.what(),
                      .process = ProcessState::kLost,
                      .is_echo = true});
  }
}

}  // namespace

RendezvousRunStore::RendezvousRunStore(RendezvousClient& client, std::string prefix,
                                       std::int64_t rank, std::int64_t world_size,
                                       const Progress& progress)
    : client_(client),
      prefix_(std::move(prefix)),
      rank_(rank),
      world_size_(world_size),
      progress_(progress) {}

void RendezvousRunStore::set(const std::string& key, const std::string& value) {
  or_echo([&] { client_.set(prefix_ + key, value); });
}

std::string RendezvousRunStore::get(const std::string& key) {
  const Waiting waiting(progress_.page());
  for (;;) {
    const auto value = or_echo([&] { return client_.get_within(prefix_ + key, kLook); });
    if (value) {
      return *value;
    }
    if (progress_.must_abort()) {
      throw RunFailure(
          {.status = RunStatus::kCrash, .reason = "gave up waiting for " + key, .is_echo = true});
    }
  }
}

void RendezvousRunStore::erase(const std::string& key) {
  or_echo([&] { client_.erase(prefix_ + key); });
}

bool RendezvousRunStore::all_agree(const std::string& phase, bool mine) {
  const std::string key = "agree/" + phase + "/";
  set(key + std::to_string(rank_), mine ? "yes" : "no");
  bool all = mine;
  for (std::int64_t rank = 0; rank < world_size_; ++rank) {
    all = (rank == rank_ || get(key + std::to_string(rank)) == "yes") && all;
  }
  return all;
}

}  // namespace shardplan
