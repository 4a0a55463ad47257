#include "data/read/provenance.h"

#include <algorithm>
#include <vector>

#include "data/read/json_message.h"

namespace shardplan {

Provenance read_provenance(ObjectReader& reader) {
  const std::string word = reader.string("origin");
  const auto* const found = std::ranges::find(kOriginNames, word);
  if (found == kOriginNames.end()) {
    throw reader.error(
        "origin", "found \"" + shown(word, Encoding::kUtf8) + "\", expected one of " +
                      joined(std::vector<std::string>(kOriginNames.begin(), kOriginNames.end())));
  }
  return {.origin = static_cast<Origin>(found - kOriginNames.begin()),
          .source = reader.string("source")};
}

}  // namespace shardplan
