def group_lists(ranks, tp, dp):
    n=len(ranks)
    if tp is None and dp is None: tp, dp = 1, n
    elif tp is None: tp = n//dp
    elif dp is None: dp = n//tp
    if tp*dp!=n: raise ValueError(f"castor: tp {tp} x dp {dp} is not {n}")
    return [ranks[i*tp:(i+1)*tp] for i in range(dp)], [ranks[j::tp] for j in range(tp)]
