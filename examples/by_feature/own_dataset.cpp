// SPDX-License-Identifier: Apache-2.0
// A data set of your own: samples are structs, batches come from your own
// function or from the ready one for texts of different length.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <iostream>

/// A sample. `Batch` is what many of them become: a number is then a tensor.
struct Review {
  std::vector<int64_t> input_ids;
  torch::Tensor attention_mask; // left undefined: padding fills it in
  int64_t stars = 0;

  struct Batch {
    torch::Tensor input_ids, attention_mask, stars;
  };
};
auto tensor_fields(Review& r) {
  return std::tie(r.input_ids, r.attention_mask, r.stars);
}
auto tensor_fields(Review::Batch& b) {
  return std::tie(b.input_ids, b.attention_mask, b.stars);
}
auto field_names(const Review&) {
  return std::array{"input_ids", "attention_mask", "stars"};
}

/// Anything with `size` and `get` is a data set. `get` may be called from
/// several threads at once.
class Reviews {
 public:
  size_t size() const { return 6; }
  Review get(int64_t i) const {
    return {
        std::vector<int64_t>(static_cast<size_t>(1 + i % 3), 100 + i),
        {},
        i % 5};
  }
};

/// A collate function of your own: all words of the batch behind one another.
struct Packed {
  torch::Tensor words;
  torch::Tensor first_word; // of each review
};
auto tensor_fields(Packed& p) {
  return std::tie(p.words, p.first_word);
}

Packed pack(const std::vector<Review>& reviews) {
  std::vector<int64_t> words, first;
  for (const Review& review : reviews) {
    first.push_back(static_cast<int64_t>(words.size()));
    words.insert(words.end(), review.input_ids.begin(), review.input_ids.end());
  }
  return {torch::tensor(words), torch::tensor(first)};
}

int main() {
  const Reviews reviews;
  const accelerate::PaddingCollator pad({.multiple_of = 4});
  const accelerate::BatchShard shard(
      accelerate::RandomSampler(6).order(/*seed=*/42, /*epoch=*/0),
      {.batch_size = 3},
      {});
  for (int64_t i = 0; i < shard.size(); ++i) {
    std::vector<Review> samples;
    for (const int64_t index : shard.batch(i).indices) {
      samples.push_back(reviews.get(index));
    }
    const Review::Batch batch = pad(samples);
    std::cout << "padded " << batch.input_ids.sizes() << ", "
              << batch.attention_mask.sum().item<int64_t>() << " words, stars "
              << batch.stars.sum().item<int64_t>() << "; packed "
              << pack(samples).words.sizes() << "\n";
  }
}
