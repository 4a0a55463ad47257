// What a client of the rendezvous asks of its server, as one text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardplan {

struct RendezvousRequest {
  char what = 0;  // s: set, g: get, e: erase, c: claim, w: will
  std::int64_t timeout_ms = 0;
  std::string key;
  std::string value;
};

std::string text_of(const RendezvousRequest& request);

// Nothing for a text that text_of() has not written, or that asks to wait for years.
std::optional<RendezvousRequest> rendezvous_request_of(const std::string& text);

}  // namespace shardplan
