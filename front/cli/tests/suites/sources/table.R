# A data frame: join, aggregate, sort, a linear model.
set.seed(1)
n <- 600000
left <- data.frame(key = sample(1e5, n, TRUE), value = runif(n), name = sample(letters, n, TRUE))
right <- data.frame(key = seq_len(1e5), weight = runif(1e5))
joined <- merge(left, right, by = "key")
joined <- joined[order(joined$name, joined$value), ]
print(head(joined, 3))
print(aggregate(value ~ name, joined, sum))
print(coef(lm(value ~ weight + name, joined)))
print(format(sum(joined$value * joined$weight), digits = 15))
