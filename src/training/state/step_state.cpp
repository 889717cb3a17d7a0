// SPDX-License-Identifier: Apache-2.0
#include "training/state/step_state.h"

#include <algorithm>
#include <vector>

namespace accelerate {

/// Running loops. The loop that returned a batch last is at the end. Shared
/// with the loops, which may outlive the `StepState`.
struct StepState::Feeds {
  struct Entry {
    const Feed* feed;
    BatchFacts facts;
  };
  std::vector<Entry> running;
  std::optional<BatchFacts> left;

  void remove(const Feed* feed) {
    std::erase_if(running, [&](const Entry& e) { return e.feed == feed; });
  }
};

StepState::StepState() : feeds_(std::make_shared<Feeds>()) {}

std::shared_ptr<StepState::Feed> StepState::open_feed(int64_t full_size) {
  class ListedFeed final : public Feed {
   public:
    ListedFeed(std::shared_ptr<Feeds> feeds, int64_t full_size)
        : feeds_(std::move(feeds)), full_size_(full_size) {}
    ~ListedFeed() override { feeds_->remove(this); }
    void hand_out(const BatchFacts& facts) override {
      feeds_->remove(this);
      feeds_->running.push_back({this, facts});
      feeds_->running.back().facts.full_size = full_size_;
      feeds_->left.reset();
    }
    void leave() override {
      for (const auto& entry : feeds_->running) {
        if (entry.feed == this) {
          feeds_->left = entry.facts;
        }
      }
      feeds_->remove(this);
    }

   private:
    std::shared_ptr<Feeds> feeds_;
    int64_t full_size_;
  };
  return std::make_shared<ListedFeed>(feeds_, full_size);
}

std::optional<BatchFacts> StepState::batch() const {
  if (feeds_->running.empty()) {
    return std::nullopt;
  }
  return feeds_->running.back().facts;
}

std::optional<BatchFacts> StepState::batch_in_use() const {
  return feeds_->running.empty() ? feeds_->left : batch();
}

} // namespace accelerate
