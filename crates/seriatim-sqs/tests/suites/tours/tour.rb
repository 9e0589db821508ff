# What aws-sdk for Ruby, version 1, does with the server at the address given. It speaks Query, and
# is older than FIFO queues.
require 'aws/core'
require 'aws/sqs'
require 'uri'

address = URI(ARGV[0])
sqs = AWS::SQS.new(
  access_key_id: 'x', secret_access_key: 'y', use_ssl: false,
  sqs_endpoint: address.host, sqs_port: address.port, sqs_region: 'us-east-1'
)

def same(found, expected)
  raise "#{found.inspect}, not #{expected.inspect}" unless found == expected
end

def refused(code)
  yield
rescue AWS::Errors::ClientError => error
  same(error.code, code)
else
  raise "#{code} was expected"
end

name = 'tour-ruby'
refused('AWS.SimpleQueueService.NonExistentQueue') { sqs.queues.named(name) }
queue = sqs.queues.create(name, visibility_timeout: 60)
same(sqs.queues.named(name).url, queue.url)
same(sqs.queues.with_prefix('tour-').map(&:url), [queue.url])
same(queue.visibility_timeout, 60)

# The SDK compares the sums of bodies and attributes itself.
attributes = {
  'text' => { data_type: 'String', string_value: 'é <&>' },
  'bytes' => { data_type: 'Binary', binary_value: "\0\xff".b }
}
sent = queue.send_message("0 é <&>\r\n", message_attributes: attributes)
got = queue.receive_message(wait_time_seconds: 10, attributes: [:all], message_attribute_names: ['All'])
same(got.id, sent.id)
same(got.body.force_encoding('UTF-8'), "0 é <&>\r\n")
same(got.receive_count, 1)
got.visibility_timeout = 0
queue.receive_message(wait_time_seconds: 10).delete

same(queue.batch_send(%w[1 2 3]).size, 3)
same(queue.approximate_number_of_messages, 3)
bodies = []
while bodies.size < 3
  messages = queue.receive_message(limit: 10, wait_time_seconds: 10)
  bodies.concat(messages.map(&:body))
  queue.batch_delete(*messages)
end
same(bodies.sort, %w[1 2 3])
refused('ReceiptHandleIsInvalid') do
  sqs.client.delete_message(queue_url: queue.url, receipt_handle: 'forged')
end
queue.delete
puts 'all well'
