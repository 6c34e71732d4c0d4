// Subscriptions to callbacks of Compute Sanitizer.
#pragma once

#include <algorithm>
#include <vector>

#include "driver/api.h"

namespace tileprof {

template <typename Ids>
bool is_one_of(uint32_t cbid, const Ids& ids) {
    return std::find(ids.begin(), ids.end(), cbid) != ids.end();
}

class Callbacks {
  public:
    // Returns an empty string, or the reason why the library refuses.
    std::string subscribe(Sanitizer_CallbackFunc callback);
    void follow_resources();
    // Subscribes to launches, copies, fills and synchronisation; these are followed only while something may be
    // recorded.
    void follow_work(bool on);
    // Subscribes to calls of the driver.
    template <typename Ids>
    void follow_calls(const Ids& ids, bool on = true) {
        for (Sanitizer_CallbackId id : ids)
            check(api.sanitizerEnableCallback(on, subscriber_, SANITIZER_CB_DOMAIN_DRIVER_API, id),
                  "enabling callbacks");
    }

  private:
    Sanitizer_SubscriberHandle subscriber_ = nullptr;
};

}  // namespace tileprof
